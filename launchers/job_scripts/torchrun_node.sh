#!/usr/bin/env bash
# The one process that torchrun starts on a node; it reports its end to the script that started torchrun.
#
#   bash launchers/job_scripts/torchrun_node.sh FOLDER COMMAND...     writes FOLDER/process and FOLDER/status
set -euo pipefail

folder="$1"
shift
echo "$$" >"$folder/process"
# The command receives the signal as well, since it is in the same process group; wait for it.
trap : TERM INT HUP
status=0
"$@" || status=$?
echo "$status" >"$folder/status"
case "$status" in
    # Reported already: torchrun would add a traceback of its own.
    2 | 129 | 130 | 143) exit 0 ;;
    *) exit "$status" ;;
esac
