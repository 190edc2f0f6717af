#!/usr/bin/env bash
# Runs one of the named runs of experiments/matrix.yaml; every experiments/*/run_*.sh calls it.
#
#   bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--repeat N] [key=value ...]
set -euo pipefail

if [[ $# -eq 0 ]]; then
    echo "usage: bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--repeat N] [key=value ...]" >&2
    exit 2
fi
# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap
exec efficientbench run "$@"
