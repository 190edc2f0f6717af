#!/usr/bin/env bash
# From text to a chat model: check of the machine, text, tokenizer, base, CORE, mid-training, SFT with their evaluations,
# reinforcement learning with --rl, report card. It prints each command, and says how to talk with the model.
#
#   bash launchers/speedrun.sh [dsw|dlc] [--variant mla] [--depth N] [--rl] [--work FOLDER] [key=value ...]
#
# After an interruption call it again: it skips what is complete. --help lists all options; --device cpu runs a short one.
set -euo pipefail

_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launchers/environment/ascend_env.sh
source "$_root/launchers/environment/ascend_env.sh"
# shellcheck source=launchers/bootstrap.sh
source "$_root/launchers/bootstrap.sh"

device=auto
if ascend_has_device; then
    ascend_source
    # NPUs that cannot be used are an error: the CPU does not take their place unasked.
    device=npu
fi
bootstrap
exec efficientbench speedrun --device "$device" "$@"
