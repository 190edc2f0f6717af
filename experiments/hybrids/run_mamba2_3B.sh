#!/usr/bin/env bash
# Runs, measures and reports mamba2_3B. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/hybrids/run_mamba2_3B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" mamba2_3B "$@"
