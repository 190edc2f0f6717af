#!/usr/bin/env bash
# The Python environment that every script here runs in: made once, then found in a few milliseconds.
#
#   source launchers/bootstrap.sh; bootstrap [extra...]     in a script: sets up if need be, then sets PATH
#   bash launchers/bootstrap.sh [extra...]                  sets up only; extras: chat, dev, docs, finetune, gpu, npu, plots, wandb
#
# 1. An active environment that can import this repository's package, and what it needs, is used as it is.
# 2. Where python3 has a torch with an accelerator (a cluster's or vendor's image), .venv sees that interpreter's
#    packages (--system-site-packages), and torch is neither installed nor replaced.
# 3. Else .venv is made from python3 or, if that is too old or too new, from python3.11, 3.12, 3.13 or 3.10.
#
# Packages come from the index that pip is configured for. Where torch's default build there brings CUDA libraries that
# this machine has no use for, name an index with CPU builds in PIP_EXTRA_INDEX_URL before the first call.

_bootstrap_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# In a container another folder: the Python of a .venv that was made outside is not there.
_bootstrap_venv="$_bootstrap_root/${EFFICIENTBENCH_VENV:-.venv}"
# Written last: a .venv without it, or with other contents, is not finished or not up to date.
_bootstrap_stamp="$_bootstrap_venv/.efficientbench-complete"
# Written first: a .venv without it is somebody else's and is left alone.
_bootstrap_mark="$_bootstrap_venv/.efficientbench-made-here"

# Print a text in English, or in Chinese where the locale is Chinese.
_bootstrap_text() { # english chinese
    local locale="${LC_ALL:-${LC_MESSAGES:-${LANG:-}}}"
    [[ "${locale,,}" != zh* ]] || shift
    printf '%s' "$1"
}

_bootstrap_say() { printf '%s%s\n' "$(_bootstrap_text 'set-up: ' '设置：')" "$(_bootstrap_text "$@")" >&2; }

_bootstrap_fail() { # english chinese
    printf '%s%s\n' "$(_bootstrap_text 'error: ' '错误：')" "$(_bootstrap_text "$@")" >&2
    return 1
}

_bootstrap_hash() { cat "$_bootstrap_root/setup.py" "$_bootstrap_root/constraints.txt" | sha256sum | cut -d ' ' -f 1; }

# Stamp: line 1 the hash of what was installed, line 2 this folder's path, line 3 the image's torch (or nothing),
# line 4 the extras. Another path means scripts that point elsewhere; a missing image torch means another image.
_bootstrap_is_rooted_here() {
    local lines=()
    [[ -x "$_bootstrap_venv/bin/python" && -r "$_bootstrap_stamp" ]] || return 1
    mapfile -t lines <"$_bootstrap_stamp"
    [[ ${#lines[@]} -eq 4 && "${lines[1]}" == "$_bootstrap_root" ]] || return 1
    [[ -z "${lines[2]}" || -e "${lines[2]}" ]]
}

_bootstrap_is_complete() { # extras...
    local lines=() extra
    _bootstrap_is_rooted_here || return 1
    mapfile -t lines <"$_bootstrap_stamp"
    [[ "${lines[0]}" == "$(_bootstrap_hash)" ]] || return 1
    for extra in "$@"; do
        [[ " ${lines[3]} " == *" $extra "* ]] || return 1
    done
}

_bootstrap_serves() { # python extras...; whether this interpreter imports our package and what it needs
    local python="$1"
    shift
    command -v "$python" >/dev/null || return 1
    (cd / && "$python" - "$_bootstrap_root" "$@" 2>/dev/null) <<'PYTHON'
import importlib.util, os, shutil, sys
root, extras = sys.argv[1], sys.argv[2:]
def found(name):
    try:
        return importlib.util.find_spec(name)
    except ImportError:
        return None
needed = ["torch", "megatron.core", "pydantic", "yaml", "typer", "rich", "psutil", "transformers", "tensorboard"]
needed += ["fsspec", "huggingface_hub", "jinja2", "pyarrow", "tiktoken"]
of_extra = {"chat": ["fastapi"], "dev": ["xdist"], "docs": ["mkdocs"], "finetune": ["deepspeed", "peft", "trl"],
            "gpu": ["fla"], "npu": ["torch_npu"], "plots": ["vl_convert"], "wandb": ["wandb"]}
needed += [name for extra in extras for name in of_extra[extra]]
own = found("efficientbench")
# This file lies beside the package in a clone, and inside of it where a wheel was installed.
package = own and own.origin and os.path.dirname(os.path.realpath(own.origin))
sys.exit(not ((3, 10) <= sys.version_info[:2] < (3, 14) and root in (package, package and os.path.dirname(package))
              and shutil.which("efficientbench") and all(map(found, needed))))
PYTHON
}

_bootstrap_version_of() { (cd / && "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); }

# Prints the path of the first interpreter in range.
_bootstrap_find_python() {
    local name version found=()
    for name in python3 python3.11 python3.12 python3.13 python3.10; do
        command -v "$name" >/dev/null || continue
        version="$(_bootstrap_version_of "$name")" || continue
        if [[ "$version" =~ ^3\.(10|11|12|13)\. ]]; then
            command -v "$name"
            return 0
        fi
        found+=("$name is $version")
    done
    _bootstrap_fail "Python 3.10 to 3.13 is needed; found on PATH: $(_bootstrap_join "${found[@]:-no python3}")" \
        "需要 Python 3.10 至 3.13；PATH 上只有：$(_bootstrap_join "${found[@]:-没有 python3}")"
}

_bootstrap_join() {
    local IFS=';'
    printf '%s' "$*"
}

# The packages of which the index has no file that fits: pip calls a pinned one part of a conflict.
_bootstrap_absent() { # log
    local names
    names="$(sed -nE -e 's/^ERROR: No matching distribution found for ([^;]+[^; ]).*/\1/p' \
        -e '/no matching distributions available for your environment:$/,/^$/s/^    +([^ ]+)$/\1/p' "$1" | sort -u)"
    printf '%s' "${names//$'\n'/, }"
}

# The package whose source did not become a wheel: pip names it, but for one whose metadata it could not make.
_bootstrap_unbuilt() { # log
    if grep -q '^error: metadata-generation-failed' "$1"; then
        sed -nE 's/^ *(Collecting|Processing) ([^ ]+).*/\2/p' "$1" | tail -n 1
    else
        sed -nE "s/^ *ERROR: Failed (building wheel for|to build) '?([^ ']+).*/\\2/p" "$1" | tail -n 1
    fi
}

# The likely cause of a failed installation, from pip's log.
_bootstrap_explain() { # log
    local absent unbuilt here
    absent="$(_bootstrap_absent "$1")" unbuilt="$(_bootstrap_unbuilt "$1")"
    here="$(uname -m), Python $(_bootstrap_version_of "$_bootstrap_venv/bin/python")"
    tail -n 8 "$1" | sed 's/^/    /' >&2
    if grep -qE 'No space left on device|Errno 28|Disk quota exceeded' "$1"; then
        _bootstrap_fail "no space left while installing into $_bootstrap_venv: free some (10 GB serve torch's CUDA build, 3 GB its CPU build) and call again (log: $1)" \
            "安装到 ${_bootstrap_venv} 时空间不足：请腾出空间（torch 的 CUDA 版需 10 GB，CPU 版需 3 GB）后再次调用（日志：${1}）"
    elif grep -qE 'name resolution|NewConnectionError|Network is unreachable|ConnectTimeout|ProxyError|Max retries' "$1"; then
        _bootstrap_fail "the package index cannot be reached: check the network, or the index and proxy that pip is configured for (pip config list), and call again (log: $1)" \
            "无法连接软件包索引：请检查网络，或 pip 配置的索引和代理（pip config list），然后再次调用（日志：${1}）"
    elif [[ -n "$absent" ]]; then
        _bootstrap_fail "the package index has no $absent for this processor and Python ($here): name an index that has it in PIP_EXTRA_INDEX_URL, or use another Python of 3.10 to 3.13, and call again (log: $1)" \
            "软件包索引中没有适用于本机处理器和 Python（${here}）的 ${absent}：请用 PIP_EXTRA_INDEX_URL 指定有它的索引，或改用 3.10 至 3.13 中的另一个 Python，然后再次调用（日志：${1}）"
    elif [[ -n "$unbuilt" ]]; then
        _bootstrap_fail "the package index has no wheel of $unbuilt for this processor and Python ($here), and it could not be built from source: install what the lines above ask for (a compiler is in Debian's and Ubuntu's build-essential, Python's headers in python3-dev), or name an index that has a wheel in PIP_EXTRA_INDEX_URL, and call again (log: $1)" \
            "软件包索引中没有适用于本机处理器和 Python（${here}）的 $unbuilt 的 wheel，而从源码构建失败：请安装以上各行所要求的（编译器在 Debian、Ubuntu 的 build-essential 中，Python 头文件在 python3-dev 中），或用 PIP_EXTRA_INDEX_URL 指定有其 wheel 的索引，然后再次调用（日志：${1}）"
    else
        _bootstrap_fail "installing the packages failed: the lines above are the end of $1" "安装软件包失败：以上是 ${1} 的结尾"
    fi
}

_bootstrap_unwritable() {
    _bootstrap_fail "cannot write to $_bootstrap_root, where .venv is to be made" "无法写入 ${_bootstrap_root}，.venv 要建在那里"
}

_bootstrap_make_venv() { # python log, then venv options
    local python="$1" log="$2"
    shift 2
    if ! { mkdir -p "$_bootstrap_venv" && : >"$_bootstrap_mark"; }; then
        _bootstrap_unwritable || return 1
    fi
    (cd / && "$python" -m venv "$@" "$_bootstrap_venv") >"$log" 2>&1 && return 0
    if grep -qE 'ensurepip|No module named venv' "$log"; then
        local package
        package="python$(_bootstrap_version_of "$python" | cut -d . -f 1,2)-venv"
        _bootstrap_fail "$python cannot make virtual environments: install the package for it (Debian, Ubuntu: apt install $package) and call again" \
            "$python 无法建立虚拟环境：请安装所需的软件包（Debian、Ubuntu：apt install ${package}）后再次调用"
        return 1
    fi
    _bootstrap_explain "$log"
}

# Says how far the last step is, from pip's log.
_bootstrap_progress() { # log seconds
    local last names=() commas
    last="$(tail -n 1 "$1")"
    mapfile -t names < <(sed -nE 's/^Collecting ([A-Za-z0-9._-]+).*/\1/p' "$1")
    if [[ "$last" == "Installing collected packages:"* ]]; then
        commas="${last//[^,]/}"
        _bootstrap_say "3 of 3, after $2 s: unpacking $((${#commas} + 1)) packages" "第 3 步，共 3 步，已 $2 秒：解包 $((${#commas} + 1)) 个软件包"
    elif [[ ${#names[@]} -gt 0 ]]; then
        _bootstrap_say "3 of 3, after $2 s: fetched ${#names[@]} packages, the last one ${names[-1]}" \
            "第 3 步，共 3 步，已 $2 秒：已获取 ${#names[@]} 个软件包，最后一个是 ${names[-1]}"
    else
        _bootstrap_say "3 of 3, after $2 s: asking the package index" "第 3 步，共 3 步，已 $2 秒：查询软件包索引"
    fi
}

# Says every 15 s how far the installation is, until the process that it works for ends.
_bootstrap_heartbeat() { # log pid
    local started=$SECONDS
    while sleep 15 >/dev/null 2>&1 && kill -0 "$2" 2>/dev/null; do
        _bootstrap_progress "$1" $((SECONDS - started))
    done
}

_bootstrap_pip() { # log constraints, then what to install
    local log="$1" constraints="$2"
    shift 2
    # A vendor's own constraints (PIP_CONSTRAINT) would contradict our pins.
    env -u PIP_CONSTRAINT -u PIP_TARGET -u PIP_USER -u PYTHONPATH "$_bootstrap_venv/bin/python" -X utf8 -I -m pip install \
        --no-input --disable-pip-version-check --progress-bar off -c "$constraints" "$@" </dev/null >>"$log" 2>&1 && return 0
    _bootstrap_explain "$log"
}

_bootstrap_install() { # log constraints extras...
    local log="$1" constraints="$2" extras
    shift 2
    extras="$(IFS=, && printf '%s' "$*")"
    _bootstrap_say "2 of 3: pip, setuptools and wheel" "第 2 步，共 3 步：pip、setuptools 和 wheel"
    _bootstrap_pip "$log" "$constraints" pip "setuptools>=77" wheel || return 1
    _bootstrap_say "3 of 3: torch, Megatron-core, transformers and what else is pinned${extras:+, for $extras too}: a few minutes, once" \
        "第 3 步，共 3 步：torch、Megatron-core、transformers 和其他固定版本的软件包${extras:+，以及 $extras 所需的}：只需一次，几分钟"
    : >"$log"
    _bootstrap_heartbeat "$log" "$BASHPID" 9>&- &
    local heartbeat=$!
    # shellcheck disable=SC2064  # the process id of now is meant
    trap "kill $heartbeat 2>/dev/null || true" EXIT
    _bootstrap_pip "$log" "$constraints" --no-build-isolation -e "${_bootstrap_root}[metrics,data,train${extras:+,$extras}]"
}

# Where pip's pins come from: ours, or in an image with its own torch ours without what that torch needs.
# Prints the image's description (see image_torch.py), or nothing where there is no such torch.
_bootstrap_choose_pins() { # python output
    local status=0
    (cd / && "$1" "$_bootstrap_root/launchers/environment/image_torch.py" "$_bootstrap_root/constraints.txt" "$2") || status=$?
    [[ $status -eq 3 ]] && cp "$_bootstrap_root/constraints.txt" "$2" && return 0
    return $status
}

_bootstrap_fill() { # pins image_metadata extras...; .venv exists, its stamp does not
    local pins="$_bootstrap_venv/pins.txt" image_metadata="$2" log="$_bootstrap_venv/setup.log"
    mv "$1" "$pins" || return 1
    shift 2
    _bootstrap_install "$log" "$pins" "$@" || return 1
    if [[ -n "$image_metadata" ]] && compgen -G "$_bootstrap_venv/lib/python3*/site-packages/torch" >/dev/null; then
        _bootstrap_fail "pip installed a torch over the image's own (log: $log): report this with the output of 'pip list'" \
            "pip 在镜像自带的 torch 之上又安装了一个（日志：${log}）：请附上 'pip list' 的输出报告此问题"
        return 1
    fi
    printf '%s\n' "$(_bootstrap_hash)" "$_bootstrap_root" "$image_metadata" "$*" >"$_bootstrap_stamp.new" &&
        mv "$_bootstrap_stamp.new" "$_bootstrap_stamp"
}

_bootstrap_set_up() { # extras...; called with the lock held
    local log="$_bootstrap_venv/setup.log" pins started=$SECONDS
    local python description image=() lines=() extras=("$@")
    _bootstrap_is_complete "$@" && return 0
    if command -v iconv >/dev/null && ! iconv -f UTF-8 -t UTF-8 <<<"$_bootstrap_root" >/dev/null 2>&1; then
        _bootstrap_fail "the path of this repository is not UTF-8, which pip and Python need: move it, or rename its folder: $_bootstrap_root" \
            "本仓库的路径不是 UTF-8，而 pip 和 Python 需要 UTF-8：请移动它，或重命名其目录：$_bootstrap_root"
        return 1
    fi
    if [[ ! -e "$_bootstrap_root/setup.py" ]]; then
        _bootstrap_fail "efficientbench was installed from a wheel and python3 does not import it with all that it needs: activate its environment and install the extra: pip install 'efficientbench[train]'" \
            "efficientbench 是从 wheel 安装的，而 python3 无法导入它或它所需要的包：请激活其环境并安装 extra：pip install 'efficientbench[train]'"
        return 1
    fi
    if [[ -e "$_bootstrap_venv" && ! -e "$_bootstrap_mark" ]]; then
        _bootstrap_fail "$_bootstrap_venv was not made by launchers/bootstrap.sh and does not serve: activate it and run 'pip install -c constraints.txt -e .' there, or move it away" \
            "${_bootstrap_venv} 不是由 launchers/bootstrap.sh 建立的，也不能用：请激活它并在其中运行 'pip install -c constraints.txt -e .'，或把它移走"
        return 1
    fi
    python="$(_bootstrap_find_python)" || return 1
    if [[ " $* " == *" finetune "* && "$(_bootstrap_version_of "$python")" == 3.10.* ]]; then
        _bootstrap_fail "fine-tuning needs Python 3.11 or newer, as TRL does; $python is $(_bootstrap_version_of "$python")" \
            "微调需要 Python 3.11 或更新，因为 TRL 如此；$python 是 $(_bootstrap_version_of "$python")"
        return 1
    fi
    pins="$(mktemp)" || return 1
    description="$(_bootstrap_choose_pins "$python" "$pins")" || return 1
    [[ -z "$description" ]] || mapfile -t image <<<"$description"
    ! _bootstrap_is_rooted_here || mapfile -t lines <"$_bootstrap_stamp"
    if [[ ${#lines[@]} -eq 4 && "${lines[2]}" == "${image[1]:-}" ]]; then
        mapfile -t extras < <(tr ' ' '\n' <<<"$* ${lines[3]}" | sed '/^$/d' | sort -u)
        _bootstrap_say "1 of 3: updating .venv, since setup.py, constraints.txt or the extras changed (log: $log)" \
            "第 1 步，共 3 步：更新 .venv，因为 setup.py、constraints.txt 或 extra 有变化（日志：${log}）"
        rm -f "$_bootstrap_stamp"
    else
        rm -rf "$_bootstrap_venv"
        _bootstrap_say "1 of 3: making .venv with $python (Python $(_bootstrap_version_of "$python"))${image:+ beside its ${image[0]}} (log: $log)" \
            "第 1 步，共 3 步：用 ${python}（Python $(_bootstrap_version_of "$python")）建立 .venv${image:+，保留其 ${image[0]}}（日志：${log}）"
        _bootstrap_make_venv "$python" "$log" ${image:+--system-site-packages} || return 1
        # The venv of a venv sees the base interpreter's packages only: name the folders of the one in between.
        [[ ${#image[@]} -lt 3 ]] || printf '%s\n' "${image[@]:2}" >"$(echo "$_bootstrap_venv"/lib/python3*/site-packages)/image.pth"
    fi
    _bootstrap_fill "$pins" "${image[1]:-}" "${extras[@]}" || return 1
    _bootstrap_say "done after $((SECONDS - started)) s" "完成，用时 $((SECONDS - started)) 秒"
}

_bootstrap_use_venv() {
    export VIRTUAL_ENV="$_bootstrap_venv" PATH="$_bootstrap_venv/bin:$PATH"
    unset PYTHONHOME
}

# Take the empty entries out of PYTHONPATH, of which CANN's set_env.sh leaves one: each is the working directory.
_bootstrap_clean_path() {
    local path=":${PYTHONPATH:-}:"
    while [[ "$path" == *::* ]]; do path="${path//::/:}"; done
    path="${path#:}" path="${path%:}"
    if [[ -n "$path" ]]; then export PYTHONPATH="$path"; else unset PYTHONPATH; fi
}

# Leaves python3 and efficientbench on PATH, ready to run.
bootstrap() { # [chat] [dev] [docs] [finetune] [gpu] [npu] [plots] [wandb]
    local extra
    for extra in "$@"; do
        [[ "$extra" =~ ^(chat|dev|docs|finetune|gpu|npu|plots|wandb)$ ]] || \
            _bootstrap_fail "bootstrap: unknown extra '$extra': chat, dev, docs, finetune, gpu, npu, plots or wandb" \
                "bootstrap：未知的 extra '$extra'：应为 chat、dev、docs、finetune、gpu、npu、plots 或 wandb" || return 2
    done
    # Else a folder called efficientbench in the working directory would hide ours (Python 3.11 and newer).
    export PYTHONSAFEPATH=1
    # In any locale a path's bytes are the letters that they are in UTF-8.
    export PYTHONUTF8=1
    _bootstrap_clean_path
    local active="${VIRTUAL_ENV:-${CONDA_PREFIX:-}}"
    if [[ -z "$active" || "$active" == "$_bootstrap_venv" ]] && _bootstrap_is_complete "$@"; then
        _bootstrap_use_venv
        return 0
    fi
    if [[ "$active" != "$_bootstrap_venv" ]] && _bootstrap_serves python3 "$@"; then
        return 0
    fi
    if [[ ! -e "$_bootstrap_mark" ]] && _bootstrap_serves "$_bootstrap_venv/bin/python" "$@"; then
        _bootstrap_use_venv
        return 0
    fi
    if ! : 2>/dev/null >>"$_bootstrap_root/.venv.lock"; then
        _bootstrap_unwritable || return 1
    fi
    (
        # An active but outdated .venv must not be the interpreter that it is made from.
        PATH=":$PATH:" && PATH="${PATH//":$_bootstrap_venv/bin:"/:}" && PATH="${PATH#:}" && PATH="${PATH%:}"
        if ! flock -n 9; then
            _bootstrap_say "another set-up of $_bootstrap_venv is under way: waiting for it" "$_bootstrap_venv 正由另一个进程设置：等待中"
            flock 9
        fi
        _bootstrap_set_up "$@"
    ) 9>>"$_bootstrap_root/.venv.lock" || return 1
    _bootstrap_use_venv
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    set -euo pipefail
    if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then
        _bootstrap_text "$(sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}")
" "各脚本运行所用的 Python 环境：建立一次，以后几毫秒内找到。

  source launchers/bootstrap.sh; bootstrap [extra...]     在脚本中：按需安装，然后设置 PATH
  bash launchers/bootstrap.sh [extra...]                  只安装；extra：chat、dev、finetune、gpu、npu、wandb

1. 若当前激活的环境能导入本仓库的软件包及其所需，则原样使用。
2. 若 python3 带有支持加速器的 torch（集群或厂商的镜像），.venv 使用该解释器的软件包，不安装也不替换 torch。
3. 否则由 python3（过旧或过新时由 python3.11、3.12、3.13 或 3.10）建立 .venv。

软件包来自 pip 所配置的索引。若那里默认的 torch 带有本机用不到的 CUDA 库，请在首次调用前用 PIP_EXTRA_INDEX_URL 指定提供 CPU 构建的索引。
"
        exit 0
    fi
    bootstrap "$@"
fi
