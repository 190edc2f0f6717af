#!/usr/bin/env bash
# Runs one of the named runs of experiments/matrix.yaml; every experiments/*/run_*.sh calls it.
#
#   bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--repeat N] [key=value ...]
set -euo pipefail

usage() {
    cat <<USAGE
usage: bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--tokenizer PATH] [--repeat N] [key=value ...]
  NAME            a run of experiments/matrix.yaml, like gqa_1.5B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         the same architecture, scaled down to a minute on a laptop
  --data PATH     text, or tokens as .bin and .idx; the sample text without it
  --tokenizer P   folder or name of a tokenizer; without it one is trained on the text
  --repeat N      N runs with consecutive seeds
  key=value       a key of the configuration, like lr=2e-4 or tokens=1B: efficientbench keys lists them
example: bash launchers/run_named.sh gqa_0.5B --smoke steps=60
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
bootstrap
exec efficientbench run "$@"
