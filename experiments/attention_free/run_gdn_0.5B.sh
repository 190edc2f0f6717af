#!/usr/bin/env bash
# Runs, measures and reports gdn_0.5B. Written by `efficientbench scripts` from experiments/hybrids.yaml.
#
#   bash experiments/attention_free/run_gdn_0.5B.sh [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launchers/run_named.sh" gdn_0.5B "$@"
