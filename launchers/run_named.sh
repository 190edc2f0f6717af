#!/usr/bin/env bash
# Runs one of the named runs of experiments/matrix.yaml; every experiments/*/run_*.sh calls it.
#
#   bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--repeat N] [key=value ...]
set -euo pipefail

usage() {
    # shellcheck source=launchers/environment/ascend_env.sh
    source "$(dirname "${BASH_SOURCE[0]}")/environment/ascend_env.sh"
    ascend_say "$(
        cat <<ENGLISH
usage: bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--tokenizer PATH] [--repeat N] [key=value ...]
  NAME            a run of experiments/matrix.yaml, like gqa_1.5B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         the same architecture, scaled down to a minute on a laptop
  --data PATH     text, or tokens as .bin and .idx; the sample text without it
  --tokenizer P   folder or name of a tokenizer; without it one is trained on the text
  --repeat N      N runs with consecutive seeds
  key=value       a key of the configuration, like lr=2e-4 or tokens=1B: efficientbench keys lists them
example: bash launchers/run_named.sh gqa_0.5B --smoke steps=60
ENGLISH
    )" "$(
        cat <<CHINESE
用法：bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--tokenizer PATH] [--repeat N] [key=value ...]
  NAME            experiments/matrix.yaml 中的运行，如 gqa_1.5B；experiments/ 中的脚本会给出
  dsw|dlc         本机的设备（默认），或 MASTER_ADDR、WORLD_SIZE 和 RANK 描述的多个节点
  --smoke         同样的架构，缩小到笔记本电脑上一分钟
  --data PATH     文本，或 .bin 和 .idx 形式的 token；不写则用示例文本
  --tokenizer P   分词器的目录或名称；不写则用文本训练一个
  --repeat N      以连续的种子运行 N 次
  key=value       配置的键，如 lr=2e-4 或 tokens=1B；efficientbench keys 列出全部
示例：bash launchers/run_named.sh gqa_0.5B --smoke steps=60
CHINESE
    )"
}
if [[ $# -eq 0 ]]; then
    usage >&2
    exit 2
fi
for argument in "$@"; do
    if [[ "$argument" == -h || "$argument" == --help ]]; then
        usage
        exit 0
    fi
done
# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap
exec efficientbench run "$@"
