#!/usr/bin/env bash
# Runs, measures and reports freeze_0.5B. Written by `efficientbench scripts` from experiments/finetuning.yaml.
#
#   bash experiments/finetuning/run_freeze_0.5B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" finetune freeze_0.5B "$@"
