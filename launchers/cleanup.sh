#!/usr/bin/env bash
# Ends the processes that runs have started and that still run. It finds them by a mark in their environment, never by
# their name, and touches no other process.
#
#   bash launchers/cleanup.sh [--dry-run] [FOLDER ...]     folders of output; ./output by default
#
# --dry-run only prints what would be ended.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launchers/environment/ascend_env.sh
source "$root/launchers/environment/ascend_env.sh"
if [[ " $* " == *" -h "* || " $* " == *" --help "* ]]; then
    ascend_say "$(sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}")" \
        "结束由运行启动且仍在运行的进程。它通过环境变量中的标记找到这些进程，从不按名称，也不触及其他进程。

  bash launchers/cleanup.sh [--dry-run] [FOLDER ...]     输出目录；默认 ./output

--dry-run 只打印将要结束的进程。"
    exit 0
fi
if ! command -v python3 >/dev/null; then
    ascend_say "error: python3 is not on the PATH" "错误：PATH 中没有 python3" >&2
    exit 2
fi
# Isolated: nothing that it imports lies in the working directory, or where PYTHONPATH points.
exec python3 -I "$root/launchers/processes/cleanup.py" "$@"
