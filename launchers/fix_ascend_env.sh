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

usage() {
    echo "usage: bash launchers/fix_ascend_env.sh [--apply] [--file FILE]" >&2
    exit 2
}

while [[ $# -gt 0 ]]; do
    case "$1" in
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    --apply) apply=true && shift ;;
    --file) [[ $# -ge 2 ]] || usage && file="$2" && shift 2 ;;
    *) usage ;;
    esac
done

# $1 what is wrong, $2 the line that fixes it in every new shell
fix_by_line() {
    printf '✗ %s\n    would write: %s\n' "$1" "$2"
    lines+=("$2")
}

# $1 what is wrong, the rest what somebody has to do
fix_by_others() {
    printf '✗ %s\n    needs: %s\n' "$1" "${*:2}"
    others=$((others + 1))
}

look_at_cann() {
    local found path="$root/launchers/environment/ascend_env.sh" quote="'"
    if ascend_is_sourced; then
        printf '✓ CANN is in the environment: %s\n' "${ASCEND_TOOLKIT_HOME:-$ASCEND_HOME_PATH}"
    elif found="$(ascend_find_cann | head -n 1)" && [[ -n "$found" ]]; then
        fix_by_line "CANN's environment is not set" "source '${path//$quote/$quote\\$quote$quote}' && ascend_source"
    else
        fix_by_others "CANN is not installed where it usually is" "CANN's toolkit and kernels, or an image that has them"
    fi
}

look_at_devices() {
    local device
    if ! ascend_has_device; then
        fix_by_others "no NPU: no file /dev/davinci0" "the driver; in a container --device /dev/davinci0 (and so on)," \
            "/dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc"
        return
    fi
    for device in $(compgen -G "${ASCEND_DEVICE_FILES:-/dev/davinci[0-9]*}"); do
        [[ -r "$device" && -w "$device" ]] && continue
        fix_by_others "$device cannot be opened by $(id -un)" "sudo usermod -aG HwHiAiUser $(id -un), then a new login"
        return
    done
    printf '✓ the NPUs can be opened\n'
}

# $1 variable, $2 values that are wrong (a pattern), $3 why, $4 the line that fixes it
look_at_variable() {
    local value="${!1:-}"
    [[ -n "$value" && "$value" =~ ^($2)$ ]] || return 0
    fix_by_line "$1=$value: $3" "$4"
}

look_at_variables() {
    look_at_variable ASCEND_LAUNCH_BLOCKING 1 "the host waits for every operator; it is for debugging, and slow" \
        "unset ASCEND_LAUNCH_BLOCKING"
    look_at_variable ASCEND_GLOBAL_LOG_LEVEL '0|1' "debug and info logs of every operator are written, which is slow" \
        "export ASCEND_GLOBAL_LOG_LEVEL=3"
    look_at_variable ASCEND_SLOG_PRINT_TO_STDOUT 1 "the runtime's log goes to the terminal" \
        "unset ASCEND_SLOG_PRINT_TO_STDOUT"
    look_at_variable TASK_QUEUE_ENABLE 0 "operators are prepared and started in turn, which is slow" \
        "unset TASK_QUEUE_ENABLE"
    look_at_variable ASCEND_RT_VISIBLE_DEVICES '[^0-9].*' "no NPU is visible by that; ids are numbers and commas" \
        "unset ASCEND_RT_VISIBLE_DEVICES"
    if [[ -n "${RANK_TABLE_FILE:-}" && ! -r "$RANK_TABLE_FILE" ]]; then
        fix_by_line "RANK_TABLE_FILE=$RANK_TABLE_FILE cannot be read, and HCCL would insist on it" "unset RANK_TABLE_FILE"
    fi
    if [[ "${HCCL_WHITELIST_DISABLE:-1}" == 0 && ! -r "${HCCL_WHITELIST_FILE:-}" ]]; then
        fix_by_line "HCCL_WHITELIST_DISABLE=0 without a readable HCCL_WHITELIST_FILE: no node may talk to another" \
            "unset HCCL_WHITELIST_DISABLE"
    fi
}

look_at_ports() {
    local base="${HCCL_IF_BASE_PORT:-60000}" low high reserved
    [[ -r /proc/sys/net/ipv4/ip_local_port_range && "$base" =~ ^[0-9]+$ ]] || return 0
    read -r low high </proc/sys/net/ipv4/ip_local_port_range
    reserved="$(cat /proc/sys/net/ipv4/ip_local_reserved_ports 2>/dev/null || true)"
    if ((base + 15 >= low && base <= high)) && [[ "$reserved" != *"$base"* ]]; then
        printf "· for several nodes, keep HCCL's ports for it: %s\n" \
            "sudo sysctl -w net.ipv4.ip_local_reserved_ports=${reserved:+$reserved,}$base-$((base + 15))"
    fi
}

look_at_torch() {
    local found
    if ! found="$(cd / && python3 - 2>/dev/null <<'PYTHON'
from importlib import metadata
try:
    pair = [metadata.version(name).split("+")[0].split(".")[:3] for name in ("torch", "torch-npu")]
except metadata.PackageNotFoundError as error:
    print(f"{error.name} is not installed for python3")
else:
    if pair[0] != pair[1]:
        print(f"torch {'.'.join(pair[0])} and torch-npu {'.'.join(pair[1])} do not belong together")
PYTHON
    )"; then
        fix_by_others "python3 does not run" "Python 3.10 to 3.12"
    elif [[ -n "$found" ]]; then
        fix_by_others "$found" "an image whose torch and torch-npu are of one version, or bash launchers/setup_ascend.sh"
    else
        printf '✓ torch and torch-npu belong together\n'
    fi
}

# Refuse a file whose folder is missing, or in which our block has no end: the rest of the file would count as the block.
check_file() {
    if [[ ! -d "$(dirname "$file")" ]]; then
        echo "error: --file $file: its folder is not there" >&2
        exit 2
    fi
    [[ -e "$file" ]] || return 0
    if ! awk -v begin="$begin" -v end="$end" '$0 == begin {depth++} $0 == end {depth--} depth < 0 || depth > 1 {exit}
        END {exit depth != 0}' "$file"; then
        echo "error: $file: the lines '$begin' and '$end' do not come in pairs: nothing was written; repair them" >&2
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
    [[ $wanted -eq 0 ]] || echo "nothing was changed; --apply writes the $wanted lines above into $file"
elif [[ $wanted -gt 0 ]]; then
    check_file
    keep_earlier
    target="$(readlink -f "$file")"
    [[ ! -e "$target" ]] || cp -p "$target" "$target.efficientbench.$$"
    content="$(new_content)"
    printf '%s\n' "$content" >"$target.efficientbench.$$"
    mv "$target.efficientbench.$$" "$target"
    echo "written to $file: open a new shell, or source it"
    wanted=0
fi
[[ $wanted -eq 0 && $others -eq 0 ]] && echo "nothing else is left to do"
[[ $wanted -eq 0 && $others -eq 0 ]]
