#!/usr/bin/env bash
# Runs, measures and reports base_d20. Written by `efficientbench scripts` from experiments/chat.yaml.
#
#   bash experiments/chat/run_base_d20.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" base_d20 "$@"
