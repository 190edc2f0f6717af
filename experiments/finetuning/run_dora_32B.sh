#!/usr/bin/env bash
# Runs, measures and reports dora_32B. Written by `efficientbench scripts` from experiments/finetuning.yaml.
#
#   bash experiments/finetuning/run_dora_32B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" finetune dora_32B "$@"
