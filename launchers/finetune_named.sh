#!/usr/bin/env bash
# Runs one of the named fine-tunings of experiments/finetuning.yaml; every experiments/finetuning/run_*.sh calls it.
#
#   bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail

if [[ $# -eq 0 ]]; then
    echo "usage: bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]" >&2
    exit 2
fi
# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap finetune
exec efficientbench finetune "$@"
