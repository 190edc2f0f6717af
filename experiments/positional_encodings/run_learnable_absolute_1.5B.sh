#!/usr/bin/env bash
# Runs, measures and reports learnable_absolute_1.5B. Written by `efficientbench scripts` from experiments/matrix.yaml.
#
#   bash experiments/positional_encodings/run_learnable_absolute_1.5B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" learnable_absolute_1.5B "$@"
