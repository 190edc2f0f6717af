#!/usr/bin/env bash
# From text to a chat model on Ascend NPUs: speedrun.sh with --device npu. --device cpu runs a short one without NPUs.
#
#   bash launchers/speedrun_npu.sh [dsw|dlc] [--variant mla] [--depth N] [--rl] [--work FOLDER] [key=value ...]
set -euo pipefail

exec bash "$(dirname "${BASH_SOURCE[0]}")/speedrun.sh" --device npu "$@"
