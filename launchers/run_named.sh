#!/usr/bin/env bash
# Runs one of the named runs of experiments/matrix.yaml, or one of the named fine-tunings of experiments/finetuning.yaml;
# every experiments/*/run_*.sh calls it.
#
#   bash launchers/run_named.sh NAME [dsw|dlc] [--smoke] [--repeat N] [key=value ...]
#   bash launchers/run_named.sh finetune NAME [dsw|dlc] [--smoke] [--data PATH] [--repeat N] [key=value ...]
set -euo pipefail

usage_run() {
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
usage_finetune() {
    ascend_say "$(
        cat <<ENGLISH
usage: bash launchers/run_named.sh finetune NAME [dsw|dlc] [--smoke] [--data PATH] [--plan] [--repeat N] [key=value ...]
  NAME            a fine-tuning of experiments/finetuning.yaml, like lora_7B; the scripts in experiments/ give it
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --smoke         the same method on a tiny model, on two ranks
  --data PATH     conversations or instructions: JSON, JSONL or parquet
  --plan          memory, time and traffic of the fine-tuning, which does not run
  --repeat N      N runs with consecutive seeds
  key=value       a key of the configuration, like lr=2e-4 or lora_r=16
example: bash launchers/run_named.sh finetune lora_tiny --smoke
ENGLISH
    )" "$(
        cat <<CHINESE
用法：bash launchers/run_named.sh finetune NAME [dsw|dlc] [--smoke] [--data PATH] [--plan] [--repeat N] [key=value ...]
  NAME            experiments/finetuning.yaml 中的微调，如 lora_7B；experiments/ 中的脚本会给出
  dsw|dlc         本机的设备（默认），或 MASTER_ADDR、WORLD_SIZE 和 RANK 描述的多个节点
  --smoke         同样的方法，用很小的模型和两个 rank
  --data PATH     对话或指令：JSON、JSONL 或 parquet
  --plan          微调的内存、时间和通信量；不运行
  --repeat N      以连续的种子运行 N 次
  key=value       配置的键，如 lr=2e-4 或 lora_r=16
示例：bash launchers/run_named.sh finetune lora_tiny --smoke
CHINESE
    )"
}
usage() {
    # shellcheck source=launchers/environment/ascend_env.sh
    source "$(dirname "${BASH_SOURCE[0]}")/environment/ascend_env.sh"
    if [[ "$command" == run ]]; then usage_run; else usage_finetune; fi
}
command=run extra=''
if [[ "${1:-}" == finetune ]]; then
    command=finetune extra=finetune
    shift
fi
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
bootstrap ${extra:+"$extra"}
exec efficientbench "$command" "$@"
