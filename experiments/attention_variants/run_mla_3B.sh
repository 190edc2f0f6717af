#!/usr/bin/env bash
# Runs, measures and reports mla_3B. Written by `efficientbench scripts` from experiments/matrix.yaml.
#
#   bash experiments/attention_variants/run_mla_3B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" mla_3B "$@"
