#!/usr/bin/env bash
# Runs, measures and reports kda_3to1_3B. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/hybrids/run_kda_3to1_3B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" kda_3to1_3B "$@"
