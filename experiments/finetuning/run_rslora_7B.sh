#!/usr/bin/env bash
# Runs, measures and reports rslora_7B. Written by `efficientbench scripts` from experiments/finetuning.yaml.
#
#   bash experiments/finetuning/run_rslora_7B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" finetune rslora_7B "$@"
