#!/usr/bin/env bash
# Runs, measures and reports rl_d16. Written by `efficientbench scripts` from experiments/chat.yaml.
#
#   bash experiments/chat/run_rl_d16.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" rl_d16 "$@"
