#!/usr/bin/env bash
# Runs, measures and reports mamba2_3to1_1.5B. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/hybrids/run_mamba2_3to1_1.5B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" mamba2_3to1_1.5B "$@"
