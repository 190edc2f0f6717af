#!/usr/bin/env bash
# Finds CANN, brings its environment into the shell, makes the Python environment and checks all of it.
#
#   source launchers/setup_ascend.sh      for this shell; the runs that it starts need nothing more
#   bash launchers/setup_ascend.sh        the same as a check: the environment ends with the script
#
# Where python3 has torch and torch-npu (a vendor's image), it uses them as they are; otherwise it installs torch-npu into
# .venv, in the version that constraints.txt pairs with torch. A second call skips what is done.

_setup_ascend() {
    local root extras=()
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)" || return 1
    # shellcheck source=launchers/environment/ascend_env.sh
    source "$root/launchers/environment/ascend_env.sh" || return 1
    # shellcheck source=launchers/bootstrap.sh
    source "$root/launchers/bootstrap.sh" || return 1
    ascend_source || return 1
    echo "CANN: ${ASCEND_TOOLKIT_HOME:-$ASCEND_HOME_PATH}"
    if ! (cd / && python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_npu") is None)'); then
        extras=(npu)
    fi
    bootstrap "${extras[@]}" || return 1
    efficientbench doctor --device npu
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    set -euo pipefail
    if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
        # shellcheck source=launchers/environment/ascend_env.sh
        source "$(dirname "${BASH_SOURCE[0]}")/environment/ascend_env.sh"
        ascend_say "$(sed -n '2,/^$/s/^# \{0,1\}//p; /^_setup/q' "${BASH_SOURCE[0]}")" \
            '查找 CANN，把它的环境带入 shell，建立 Python 环境，并全部检查一遍。

  source launchers/setup_ascend.sh      用于当前 shell；由它启动的运行不再需要其他东西
  bash launchers/setup_ascend.sh        只做检查：环境随脚本结束

若 python3 有 torch 和 torch-npu（厂商的镜像），则原样使用；否则在 .venv 中安装 torch-npu，版本与 torch 对应。再次调用会跳过已完成的部分。'
        exit 0
    fi
    _setup_ascend || exit 1
    ascend_say "to have this environment in your shell: source ${BASH_SOURCE[0]}" \
        "要在当前 shell 中使用此环境：source ${BASH_SOURCE[0]}"
else
    _setup_ascend
fi
