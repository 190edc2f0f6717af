#!/usr/bin/env bash
# Runs, measures and reports nanochat_d12. Written by `efficientbench scripts` from experiments/matrix.yaml.
#
#   bash experiments/published_models/run_nanochat_d12.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" nanochat_d12 "$@"
