#!/usr/bin/env bash
# Runs one of the named fine-tunings of experiments/finetuning.yaml; every experiments/finetuning/run_*.sh calls it.
#
#   bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail

usage() {
    cat <<USAGE
usage: bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
  NAME            a fine-tuning of experiments/finetuning.yaml, like lora_32B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         a tiny model in the named one's place, a minute on a laptop
  --data PATH     examples: JSON, JSONL or parquet
  --repeat N      N runs with consecutive seeds
  key=value       a key of the fine-tuning, like training.steps=200
example: bash launchers/finetune_named.sh lora_0.5B --smoke
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
