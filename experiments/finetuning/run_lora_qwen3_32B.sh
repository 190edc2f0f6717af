#!/usr/bin/env bash
# Runs, measures and reports lora_qwen3_32B. Written by `efficientbench scripts` from experiments/finetuning.yaml.
#
#   bash experiments/finetuning/run_lora_qwen3_32B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" finetune lora_qwen3_32B "$@"
