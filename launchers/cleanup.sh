#!/usr/bin/env bash
# Ends the processes that runs have started and that still run. It finds them by a mark in their environment, never by
# their name, and touches no other process.
#
#   bash launchers/cleanup.sh [--dry-run] [FOLDER ...]     folders of output; ./output by default
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
if ! command -v python3 >/dev/null; then
    echo "error: python3 is not on the PATH" >&2
    exit 2
fi
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m efficientbench.launchers.processes.cleanup "$@"
