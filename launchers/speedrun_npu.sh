#!/usr/bin/env bash
# Runs all stages on Ascend NPUs: check of the machine, tokenizer, base training (d12), evaluation.
#
#   bash launchers/speedrun_npu.sh [dsw|dlc] [--data PATH] [--devices N] [--work FOLDER] [key=value ...]
#
# After an interruption call it again: it skips complete stages. --device cpu runs the same, shortened, on a machine
# without NPUs. --help lists all options.
set -euo pipefail

# shellcheck source=launchers/environment/fineweb_stages.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment/fineweb_stages.sh"
fineweb_files=3 fineweb_devices=4 fineweb_fewer=false fineweb_device=npu fineweb_work=output/speedrun
fineweb_read_arguments speedrun_npu.sh "$@" || exit $?
fineweb_set_up

check() {
    # After a reboot, or on another machine, check again.
    local mark place
    # The nodes of a run share the folder.
    mark="$fineweb_work/checked_${fineweb_device}_$(uname -n).txt"
    place="$(cat /proc/sys/kernel/random/boot_id)"
    if [[ -e "$mark" && "$(cat "$mark")" == "$place" ]]; then
        fineweb_print "check: complete"
        return 0
    fi
    fineweb_print "check: efficientbench doctor --device $fineweb_device"
    efficientbench doctor --device "$fineweb_device" || return 1
    printf '%s\n' "$place" >"$mark.new" && mv "$mark.new" "$mark"
}

if ! check; then
    ascend_say "error: this machine does not pass the check above, so nothing was trained; bash launchers/fix_ascend_env.sh prints more, and --device cpu runs the rest here" \
        "错误：本机没有通过上面的检查，因此没有训练；bash launchers/fix_ascend_env.sh 给出更多信息，--device cpu 可在此处运行其余部分" >&2
    exit 1
fi
fineweb_run_stages base_d12
fineweb_print "mid-training and SFT continue this model (docs/conversations.md): experiments/chat/run_mid_d12.sh; then talk with it (docs/chat.md)"
fineweb_print "not there yet: reinforcement learning (RL)"
