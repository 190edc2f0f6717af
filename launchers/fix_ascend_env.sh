#!/usr/bin/env bash
# Lists what in this environment keeps Ascend NPUs from training, or slows it, and what it would change.
#
#   bash launchers/fix_ascend_env.sh                       lists; changes nothing
#   bash launchers/fix_ascend_env.sh --apply [--file F]    writes its block into F (~/.bashrc), once, whatever it held
#
# It writes nothing else: for what needs an administrator, or another image, it prints the command.
# Exit status: 0 nothing is left to do, 1 something is, 2 wrong arguments.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launchers/environment/ascend_env.sh
source "$root/launchers/environment/ascend_env.sh"

begin="# >>> efficientbench: Ascend >>>"
end="# <<< efficientbench: Ascend <<<"
apply=false
file=~/.bashrc
lines=()
others=0

chinese_help='列出此环境中妨碍昇腾 NPU 训练或使其变慢的东西，以及会怎样修改。

  bash launchers/fix_ascend_env.sh                       只列出，不改变任何东西
  bash launchers/fix_ascend_env.sh --apply [--file F]    把一段设置写入 F（~/.bashrc），只写一次

此外什么都不写：需要管理员或其他镜像的事，只打印命令。
退出码：0 没有要做的事，1 还有，2 参数错误。'

usage() {
    ascend_say "usage: bash launchers/fix_ascend_env.sh [--apply] [--file FILE]" \
        "用法：bash launchers/fix_ascend_env.sh [--apply] [--file FILE]" >&2
    exit 2
}

while [[ $# -gt 0 ]]; do
    case "$1" in
    -h | --help) ascend_say "$(sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}")" "$chinese_help" && exit 0 ;;
    --apply) apply=true && shift ;;
    --file) [[ $# -ge 2 ]] || usage && file="$2" && shift 2 ;;
    *) usage ;;
    esac
done

# $1 what is wrong, $2 the line that fixes it in every new shell
fix_by_line() {
    printf '✗ %s\n    %s%s\n' "$1" "$(ascend_say 'would write: ' '将写入：')" "$2"
    lines+=("$2")
}

# $1 what is wrong, the rest what somebody has to do
fix_by_others() {
    printf '✗ %s\n    %s%s\n' "$1" "$(ascend_say 'needs: ' '需要：')" "${*:2}"
    others=$((others + 1))
}

look_at_cann() {
    local found path="$root/launchers/environment/ascend_env.sh" quote="'"
    if ascend_is_sourced; then
        printf '✓ %s%s\n' "$(ascend_say 'CANN is in the environment: ' 'CANN 已在环境中：')" \
            "${ASCEND_TOOLKIT_HOME:-$ASCEND_HOME_PATH}"
    elif found="$(ascend_find_cann | head -n 1)" && [[ -n "$found" ]]; then
        fix_by_line "$(ascend_say "CANN's environment is not set" '未设置 CANN 的环境')" \
            "source '${path//$quote/$quote\\$quote$quote}' && ascend_source"
    else
        fix_by_others "$(ascend_say 'CANN is not installed where it usually is' 'CANN 没有安装在通常的位置')" \
            "$(ascend_say "CANN's toolkit and kernels, or an image that has them" 'CANN 的 toolkit 和 kernels，或带有它们的镜像')"
    fi
}

look_at_devices() {
    local device
    if ! ascend_has_device; then
        fix_by_others "$(ascend_say 'no NPU: no file /dev/davinci0' '没有 NPU：没有文件 /dev/davinci0')" "$(ascend_say \
            'the driver; in a container --device /dev/davinci0 (and so on), /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc' \
            '驱动；在容器中还需 --device /dev/davinci0（等等）、/dev/davinci_manager、/dev/devmm_svm 和 /dev/hisi_hdc')"
        return
    fi
    for device in $(compgen -G "${ASCEND_DEVICE_FILES:-/dev/davinci[0-9]*}"); do
        [[ -r "$device" && -w "$device" ]] && continue
        fix_by_others "$(ascend_say "$device cannot be opened by $(id -un)" "$(id -un) 无法打开 $device")" \
            "$(ascend_say "sudo usermod -aG HwHiAiUser $(id -un), then a new login" "sudo usermod -aG HwHiAiUser $(id -un)，然后重新登录")"
        return
    done
    ascend_say '✓ the NPUs can be opened' '✓ NPU 可以打开'
}

# $1 variable, $2 values that are wrong (a pattern), $3 why, $4 why in Chinese, $5 the line that fixes it
look_at_variable() {
    local value="${!1:-}"
    [[ -n "$value" && "$value" =~ ^($2)$ ]] || return 0
    fix_by_line "$1=$value: $(ascend_say "$3" "$4")" "$5"
}

look_at_variables() {
    look_at_variable ASCEND_LAUNCH_BLOCKING 1 "the host waits for every operator; it is for debugging, and slow" \
        '主机等待每个算子；用于调试，很慢' "unset ASCEND_LAUNCH_BLOCKING"
    look_at_variable ASCEND_GLOBAL_LOG_LEVEL '0|1' "debug and info logs of every operator are written, which is slow" \
        '写出每个算子的调试和信息日志，很慢' "export ASCEND_GLOBAL_LOG_LEVEL=3"
    look_at_variable ASCEND_SLOG_PRINT_TO_STDOUT 1 "the runtime's log goes to the terminal" \
        '运行时的日志输出到终端' "unset ASCEND_SLOG_PRINT_TO_STDOUT"
    look_at_variable TASK_QUEUE_ENABLE 0 "operators are prepared and started in turn, which is slow" \
        '算子依次准备和启动，很慢' "unset TASK_QUEUE_ENABLE"
    look_at_variable ASCEND_RT_VISIBLE_DEVICES '[^0-9].*' "no NPU is visible by that; ids are numbers and commas" \
        '这样没有可见的 NPU；编号由数字和逗号组成' "unset ASCEND_RT_VISIBLE_DEVICES"
    if [[ -n "${RANK_TABLE_FILE:-}" && ! -r "$RANK_TABLE_FILE" ]]; then
        fix_by_line "RANK_TABLE_FILE=$RANK_TABLE_FILE$(ascend_say ' cannot be read, and HCCL would insist on it' '：无法读取，而 HCCL 必须读它')" \
            "unset RANK_TABLE_FILE"
    fi
    if [[ "${HCCL_WHITELIST_DISABLE:-1}" == 0 && ! -r "${HCCL_WHITELIST_FILE:-}" ]]; then
        fix_by_line "$(ascend_say 'HCCL_WHITELIST_DISABLE=0 without a readable HCCL_WHITELIST_FILE: no node may talk to another' \
            'HCCL_WHITELIST_DISABLE=0 而没有可读的 HCCL_WHITELIST_FILE：任何节点都不能与其他节点通信')" \
            "unset HCCL_WHITELIST_DISABLE"
    fi
}

look_at_ports() {
    local base="${HCCL_IF_BASE_PORT:-60000}" low high reserved
    [[ -r /proc/sys/net/ipv4/ip_local_port_range && "$base" =~ ^[0-9]+$ ]] || return 0
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    reserved="$(cat /proc/sys/net/ipv4/ip_local_reserved_ports 2>/dev/null || true)"
    if ((base + 15 >= low && base <= high)) && [[ "$reserved" != *"$base"* ]]; then
        printf '· %s%s\n' "$(ascend_say "for several nodes, keep HCCL's ports for it: " '使用多个节点时，请为 HCCL 保留端口：')" \
            "sudo sysctl -w net.ipv4.ip_local_reserved_ports=${reserved:+$reserved,}$base-$((base + 15))"
    fi
}

look_at_torch() {
    local found
    if ! found="$(cd / && python3 - "$(ascend_say english chinese)" 2>/dev/null <<'PYTHON'
import sys
from importlib import metadata
chinese = sys.argv[1] == "chinese"
try:
    pair = [metadata.version(name).split("+")[0].split(".")[:3] for name in ("torch", "torch-npu")]
except metadata.PackageNotFoundError as error:
    print(f"python3 没有安装 {error.name}" if chinese else f"{error.name} is not installed for python3")
else:
    if pair[0] != pair[1]:
        one, other = map(".".join, pair)
        apart = f"torch {one} 与 torch-npu {other} 不匹配"
        print(apart if chinese else f"torch {one} and torch-npu {other} do not belong together")
PYTHON
    )"; then
        fix_by_others "$(ascend_say 'python3 does not run' 'python3 无法运行')" "$(ascend_say 'Python 3.10 to 3.13' 'Python 3.10 至 3.13')"
    elif [[ -n "$found" ]]; then
        fix_by_others "$found" "$(ascend_say 'an image whose torch and torch-npu are of one version, or bash launchers/setup_ascend.sh' \
            'torch 与 torch-npu 版本一致的镜像，或 bash launchers/setup_ascend.sh')"
    else
        ascend_say '✓ torch and torch-npu belong together' '✓ torch 与 torch-npu 匹配'
    fi
}

# Refuse a file whose folder is missing, or in which our block has no end: the rest of the file would count as the block.
check_file() {
    if [[ ! -d "$(dirname "$file")" ]]; then
        ascend_say "error: --file $file: its folder is not there" "错误：--file ${file}：其目录不存在" >&2
        exit 2
    fi
    [[ -e "$file" ]] || return 0
    if ! awk -v begin="$begin" -v end="$end" '$0 == begin {depth++} $0 == end {depth--} depth < 0 || depth > 1 {exit}
        END {exit depth != 0}' "$file"; then
        ascend_say "error: $file: the lines '$begin' and '$end' do not come in pairs: nothing was written; repair them" \
            "错误：${file}：'$begin' 与 '$end' 不成对：什么都没有写入；请先修复" >&2
        exit 2
    fi
}

# Print the file with our block as it should be; without a block where there is nothing to write.
new_content() {
    if [[ -e "$file" ]]; then
        awk -v begin="$begin" -v end="$end" '$0 == begin {skip = 1} !skip {print} $0 == end {skip = 0}' "$file"
    fi
    if [[ ${#lines[@]} -gt 0 ]]; then
        printf '%s\n' "$begin" "${lines[@]}" "$end"
    fi
}

# Keep the lines of an earlier call: in this shell they work already, so that the checks find nothing to fix.
keep_earlier() {
    local line
    [[ -e "$file" ]] || return 0
    while IFS= read -r line; do
        [[ " ${lines[*]} " == *" $line "* ]] || lines+=("$line")
    done < <(awk -v begin="$begin" -v end="$end" '$0 == end {inside = 0} inside {print} $0 == begin {inside = 1}' "$file")
}

look_at_cann
look_at_devices
look_at_variables
look_at_ports
look_at_torch

wanted=${#lines[@]}
if ! $apply; then
    [[ $wanted -eq 0 ]] || ascend_say "nothing was changed; --apply writes the $wanted lines above into $file" \
        "什么都没有改变；--apply 会把上面 $wanted 行写入 $file"
elif [[ $wanted -gt 0 ]]; then
    check_file
    keep_earlier
    target="$(readlink -f "$file")"
    [[ ! -e "$target" ]] || cp -p "$target" "$target.efficientbench.$$"
    content="$(new_content)"
    printf '%s\n' "$content" >"$target.efficientbench.$$"
    mv "$target.efficientbench.$$" "$target"
    ascend_say "written to $file: open a new shell, or source it" "已写入 ${file}：请打开新的 shell，或 source 它"
    wanted=0
fi
[[ $wanted -eq 0 && $others -eq 0 ]] && ascend_say "nothing else is left to do" "没有其他要做的事"
[[ $wanted -eq 0 && $others -eq 0 ]]
