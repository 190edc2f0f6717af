#!/usr/bin/env bash
# Runs, measures and reports gqa_3B. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/attention_free/run_gqa_3B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" gqa_3B "$@"
