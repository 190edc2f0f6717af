#!/usr/bin/env bash
# Runs one of the named fine-tunings of experiments/finetuning.yaml; every experiments/finetuning/run_*.sh calls it.
#
#   bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail

usage() {
    # shellcheck source=launchers/environment/ascend_env.sh
    source "$(dirname "${BASH_SOURCE[0]}")/environment/ascend_env.sh"
    ascend_say "$(
        cat <<ENGLISH
usage: bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--plan] [--repeat N] [key=value ...]
  NAME            a fine-tuning of experiments/finetuning.yaml, like lora_7B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         the same method on a tiny model, on two ranks
  --data PATH     conversations or instructions: JSON, JSONL or parquet
  --plan          memory, time and traffic of the fine-tuning, which does not run
  --repeat N      N runs with consecutive seeds
  key=value       a key of the configuration, like lr=2e-4 or lora_r=16
example: bash launchers/finetune_named.sh lora_tiny --smoke
ENGLISH
    )" "$(
        cat <<CHINESE
用法：bash launchers/finetune_named.sh NAME [dsw|dlc] [--smoke] [--data PATH] [--plan] [--repeat N] [key=value ...]
  NAME            experiments/finetuning.yaml 中的微调，如 lora_7B；experiments/ 中的脚本会给出
  dsw|dlc         本机的设备（默认），或 MASTER_ADDR、WORLD_SIZE 和 RANK 描述的多个节点
  --smoke         同样的方法，用很小的模型和两个 rank
  --data PATH     对话或指令：JSON、JSONL 或 parquet
  --plan          微调的内存、时间和通信量；不运行
  --repeat N      以连续的种子运行 N 次
  key=value       配置的键，如 lr=2e-4 或 lora_r=16
示例：bash launchers/finetune_named.sh lora_tiny --smoke
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
bootstrap finetune
exec efficientbench finetune "$@"
