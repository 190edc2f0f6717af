#!/usr/bin/env bash
# Runs one of the named fine-tunings of experiments/finetuning.yaml; every experiments/finetuning/run_*.sh calls it.
#
#   bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail

usage() {
    cat <<USAGE
usage: bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--plan] [--repeat N] [key=value ...]
  NAME            a fine-tuning of experiments/finetuning.yaml, like lora_7B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         the same method on a tiny model, on two ranks
  --data PATH     conversations or instructions: JSON, JSONL or parquet
  --plan          memory, time and traffic of the fine-tuning, which does not run
  --repeat N      N runs with consecutive seeds
  key=value       a key of the configuration, like lr=2e-4 or lora_r=16
example: bash launchers/finetune_named.sh lora_tiny --smoke
USAGE
}
if [[ $# -eq 0 ]]; then
    usage >&2
    exit 2
fi
for argument in "$@"; do
    if [[ "$argument" == -h || "$argument" == --help ]]; then
        usage
        exit 0
    fi
done
# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap finetune
exec efficientbench finetune "$@"
