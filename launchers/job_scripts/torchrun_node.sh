#!/usr/bin/env bash
# The one process that torchrun starts on a node; it tells the script that started torchrun how it ended.
#
#   bash launchers/job_scripts/torchrun_node.sh FOLDER COMMAND...     writes FOLDER/process and FOLDER/status
set -euo pipefail

folder="$1"
shift
echo "$$" >"$folder/process"
# The signal reaches the command as well, which is of the same process group, and is waited for.
trap : TERM INT
status=0
"$@" || status=$?
echo "$status" >"$folder/status"
case "$status" in
    # Told already: torchrun would add a traceback of its own.
    2 | 130 | 143) exit 0 ;;
    *) exit "$status" ;;
esac
