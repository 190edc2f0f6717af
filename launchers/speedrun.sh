#!/usr/bin/env bash
# From text to a chat model: check of the machine, text, tokenizer, base, CORE, mid-training, SFT with their evaluations,
# reinforcement learning with --rl, report card. It prints each command, and says how to talk with the model.
#
#   bash launchers/speedrun.sh [dsw|dlc] [--smoke] [--variant mla] [--depth N] [--rl] [--work FOLDER] [key=value ...]
#
# After an interruption call it again: it skips what is complete. --help lists all options; --device cpu runs a short one.
set -euo pipefail

_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=launchers/environment/ascend_env.sh
source "$_root/launchers/environment/ascend_env.sh"
# shellcheck source=launchers/bootstrap.sh
source "$_root/launchers/bootstrap.sh"

usage() {
    ascend_say "$(
        cat <<ENGLISH
usage: bash launchers/speedrun.sh [dsw|dlc] [--smoke] [--variant LIST] [--depth N] [--rl] [--data PATH] [--work FOLDER] [key=value ...]
       bash launchers/speedrun_npu.sh, with the same options, trains on Ascend NPUs
  dsw|dlc         this machine (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         all stages in minutes, with small models and the package's own text and rows: no network is needed
  --variant LIST  variants of experiments/matrix.yaml, one after the other, like gqa,mla
  --depth N       layers, each of width 64 * N
  --rl            reinforcement learning on GSM8K as a last stage
  --data PATH     text that the base learns; FineWeb-Edu without it
  --device TYPE   auto: the first accelerator found, else the CPU, which takes few and short steps
  --work FOLDER   where everything goes (output/speedrun)
  key=value       a key of all runs, or of those of one stage, like sft:training.steps=200
all options, after the set-up: efficientbench speedrun --help
ENGLISH
    )" "$(
        cat <<CHINESE
用法：bash launchers/speedrun.sh [dsw|dlc] [--smoke] [--variant LIST] [--depth N] [--rl] [--data PATH] [--work FOLDER] [key=value ...]
      bash launchers/speedrun_npu.sh 选项相同，在昇腾 NPU 上训练
  dsw|dlc         本机（默认），或 MASTER_ADDR、WORLD_SIZE 和 RANK 描述的多个节点
  --smoke         几分钟走完所有阶段：小模型，软件包自带的文本和数据，无需网络
  --variant LIST  experiments/matrix.yaml 的变体，逐个进行，如 gqa,mla
  --depth N       层数，每层宽度 64 * N
  --rl            最后一个阶段：在 GSM8K 上做强化学习
  --data PATH     基础模型学习的文本；不写则为 FineWeb-Edu
  --device TYPE   auto：找到的第一个加速器，否则用 CPU，步数少而短
  --work FOLDER   所有结果所在的目录（output/speedrun）
  key=value       所有运行的键，或某一阶段的键，如 sft:training.steps=200
全部选项（设置完成后）：efficientbench speedrun --help
CHINESE
    )"
}
for argument in "$@"; do
    if [[ "$argument" == -h || "$argument" == --help ]]; then
        usage
        exit 0
    fi
done
device=auto
if ascend_has_device; then
    ascend_source
    # NPUs that cannot be used are an error: the CPU does not take their place unasked.
    device=npu
fi
bootstrap
exec efficientbench speedrun --device "$device" "$@"
