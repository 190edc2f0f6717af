#!/usr/bin/env bash
# Runs, measures and reports moe_fine_shared_1.5Bx8. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/hybrids/run_moe_fine_shared_1.5Bx8.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" moe_fine_shared_1.5Bx8 "$@"
