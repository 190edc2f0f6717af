#!/usr/bin/env bash
# Runs, measures and reports relative_1.5B. Written by `efficientbench scripts` from experiments/matrix.yaml.
#
#   bash experiments/positional_encodings/run_relative_1.5B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" relative_1.5B "$@"
