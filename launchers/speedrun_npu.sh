#!/usr/bin/env bash
# Everything there is on Ascend NPUs, in order: check of the machine, tokenizer, base training (d12), evaluation.
#
#   bash launchers/speedrun_npu.sh [dsw|dlc] [--data PATH] [--devices N] [--work FOLDER] [key=value ...]
#
# Call it again after whatever stopped it: each stage that is complete is skipped. --device cpu tries the same, shortened,
# on a machine without NPUs. --help tells all words.
set -euo pipefail

# shellcheck source=launchers/environment/fineweb_stages.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment/fineweb_stages.sh"
fineweb_files=3 fineweb_devices=4 fineweb_device=npu fineweb_work=output/speedrun
fineweb_read_words speedrun_npu.sh "$@" || exit $?
fineweb_set_up

check() {
    # Another machine, or this one started anew, is checked again.
    local mark place
    # The nodes of a run share the folder.
    mark="$fineweb_work/checked_${fineweb_device}_$(uname -n).txt"
    place="$(cat /proc/sys/kernel/random/boot_id)"
    if [[ -e "$mark" && "$(cat "$mark")" == "$place" ]]; then
        fineweb_say "check: complete"
        return 0
    fi
    fineweb_say "check: efficientbench doctor --device $fineweb_device"
    efficientbench doctor --device "$fineweb_device" || return 1
    printf '%s\n' "$place" >"$mark.new" && mv "$mark.new" "$mark"
}

if ! check; then
    echo "error: this machine does not pass the check above, so nothing was trained; bash launchers/fix_ascend_env.sh" \
        "tells more, and --device cpu tries the rest here" >&2
    exit 1
fi
fineweb_run_stages fineweb_d12
fineweb_say "not there yet: mid-training, supervised fine-tuning (SFT), reinforcement learning (RL), chat"
