#!/usr/bin/env bash
# From FineWeb-Edu to a small trained model: d8 (8 layers, hidden size 512), 100 steps, on up to
# four devices; shortened on a CPU.
#
#   bash launchers/quick_fineweb_test.sh [--data PATH] [--work FOLDER] [key=value ...]     --help lists all options
#
# After an interruption call it again: it skips complete stages.
set -euo pipefail

# shellcheck source=launchers/environment/fineweb_stages.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment/fineweb_stages.sh"
fineweb_depth=8 fineweb_files=1 fineweb_devices=4 fineweb_fewer=true fineweb_device=auto fineweb_work=output/fineweb_quick
fineweb_read_arguments quick_fineweb_test.sh "$@" || exit $?
fineweb_set_up
fineweb_run_stages
