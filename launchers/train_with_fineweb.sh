#!/usr/bin/env bash
# Trains d12 (12 layers, hidden size 768) on FineWeb-Edu: 5,000 steps of 262,144 tokens on 4 NPUs or GPUs; shortened on a
# CPU.
#
#   bash launchers/train_with_fineweb.sh [dsw|dlc] [--data PATH] [--devices N] [--depth N] [--work FOLDER] [key=value ...]
#
# After an interruption call it again: it skips complete stages. --help lists all options.
set -euo pipefail

# shellcheck source=launchers/environment/fineweb_stages.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment/fineweb_stages.sh"
# The run reads 1.3 billion tokens; a file of the sample holds about 0.7 billion.
fineweb_depth=12 fineweb_files=3 fineweb_devices=4 fineweb_fewer=false fineweb_device=auto fineweb_work=output/fineweb
fineweb_read_arguments train_with_fineweb.sh "$@" || exit $?
fineweb_set_up
fineweb_run_stages
