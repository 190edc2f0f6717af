#!/usr/bin/env bash
# The stages from FineWeb-Edu to a trained and evaluated model: text, tokenizer, tokens, training, evaluation. To be
# sourced by quick_fineweb_test.sh and train_with_fineweb.sh.
#
# A stage writes into one folder, where its result appears when it is complete. After an interruption, the next call
# skips complete stages and resumes with the rest.

_fineweb_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
# shellcheck source=launchers/environment/ascend_env.sh
source "$_fineweb_root/launchers/environment/ascend_env.sh"
# shellcheck source=launchers/bootstrap.sh
source "$_fineweb_root/launchers/bootstrap.sh"

FINEWEB_VOCABULARY=65536
# The same model with shorter and fewer sequences, which a CPU trains in minutes.
FINEWEB_CPU_OVERRIDES=(training.dtype=fp32 training.seq_len=128 training.micro_batch_size=2 training.global_batch_size=4
    training.steps=20 training.validation_interval=0 measurement.min_steps=10)

_fineweb_error() { # english chinese
    ascend_say "error: $1" "错误：$2" >&2
}

fineweb_usage() { # script
    ascend_say "$(_fineweb_usage_in_english "$1")" "$(_fineweb_usage_in_chinese "$1")" >&2
}

_fineweb_usage_in_chinese() { # script
    cat <<USAGE
用法：bash launchers/$1 [dsw|dlc] [--data PATH] [--num-files N] [--devices N] [--device TYPE] [--work FOLDER] [key=value ...]
  dsw|dlc         本机的设备（默认），或由 MASTER_ADDR、WORLD_SIZE 和 RANK 描述的节点
  --data PATH     自己的文本（parquet、JSONL、文本；或 FINEWEB_DATA=PATH），代替下载 FineWeb-Edu
  --num-files N   下载 FineWeb-Edu 的文件数（${fineweb_files}）
  --devices N     训练用的加速器数（$fineweb_devices$(! $fineweb_fewer || echo "，不足时为 2 或 1")；用 dlc 或 parallel.* 时为各节点全部）
  --device TYPE   设备类型；默认为找到的第一种加速器，否则为 CPU（运行会缩短）
  --work FOLDER   所有内容的位置（${fineweb_work}）
  --depth N       层数，如 nanochat 的 d$fineweb_depth
  key=value       配置的键，如 training.steps=1000；也可写成 --key value
USAGE
}

_fineweb_usage_in_english() { # script
    cat <<USAGE
usage: bash launchers/$1 [dsw|dlc] [--data PATH] [--num-files N] [--devices N] [--device TYPE] [--work FOLDER] [key=value ...]
  dsw|dlc         this machine's devices (the default), or the nodes that MASTER_ADDR, WORLD_SIZE and RANK describe
  --data PATH     text of your own (parquet, JSONL, text; or FINEWEB_DATA=PATH) instead of downloading FineWeb-Edu
  --num-files N   files of FineWeb-Edu to download ($fineweb_files)
  --devices N     accelerators to train on ($fineweb_devices$($fineweb_fewer && echo ", or 2 or 1 where fewer are here"); all of each node with dlc or parallel.* keys)
  --device TYPE   device type; by default the first accelerator found, else the CPU, for which the run is shortened
  --work FOLDER   where everything goes ($fineweb_work)
  --depth N       layers, as in nanochat's d$fineweb_depth
  key=value       a key of the configuration, like training.steps=1000, or --key value
USAGE
}

# Read the arguments of the command line into the fineweb_* variables, which the caller has set to its defaults.
# fineweb_fewer says whether a machine with fewer devices trains on 2 or 1; otherwise it refuses.
fineweb_read_arguments() { # script arguments...
    local script="$1"
    shift
    fineweb_mode=dsw fineweb_data="${FINEWEB_DATA:-}" fineweb_overrides=() fineweb_words=() fineweb_shortened=false
    local devices_given=false
    while [[ $# -gt 0 ]]; do
        case "$1" in
        --data=* | --num-files=* | --devices=* | --device=* | --work=* | --depth=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        --?*=*) set -- "${1#--}" "${@:2}" ;; # a key with dashes before it, as nanochat's scripts take it
        esac
        case "$1" in
        dsw | dlc) fineweb_mode="$1" ;;
        --data | --num-files | --devices | --device | --work | --depth | --*[-_]*)
            if [[ $# -lt 2 ]]; then
                _fineweb_error "$1 needs a value" "$1 需要一个值" && fineweb_usage "$script"
                return 2
            fi
            case "$1" in
            --data) fineweb_data="$2" ;;
            --num-files) fineweb_files="$2" ;;
            --devices) fineweb_devices="$2" fineweb_fewer=false devices_given=true ;;
            --device) fineweb_device="$2" ;;
            --work) fineweb_work="$2" ;;
            --depth) fineweb_depth="$2" ;;
            *)
                fineweb_overrides+=("${1#--}=$2") ;;
            esac
            shift
            ;;
        -h | --help) fineweb_usage "$script" 2>&1 && exit 0 ;;
        depth=*) fineweb_depth="${1#*=}" ;;
        *=*) fineweb_overrides+=("$1") ;;
        *)
            _fineweb_error "unknown argument '$1'" "未知的参数 '$1'" && fineweb_usage "$script"
            return 2
            ;;
        esac
        shift
    done
    if ! [[ "$fineweb_files$fineweb_devices" =~ ^[0-9]+$ && "$fineweb_files" -gt 0 && "$fineweb_devices" -gt 0 ]]; then
        _fineweb_error "--num-files and --devices are whole numbers above 0" "--num-files 和 --devices 应为大于 0 的整数"
        return 2
    fi
    if ! [[ "$fineweb_depth" =~ ^[0-9]+$ ]]; then
        _fineweb_error "--depth is a whole number of layers, like --depth 12" "--depth 应为整数层数，如 --depth 12"
        return 2
    fi
    if $devices_given && _fineweb_has_layout; then
        _fineweb_error "--devices and parallel.* keys both set the number of devices: give one of them; without \
parallel.dp the run takes all" "--devices 和 parallel.* 键都设定设备数：请只给其中之一；没有 parallel.dp 时使用全部设备"
        return 2
    fi
}

# Whether the layout over devices is given, by parallel.* keys or their short names.
_fineweb_has_layout() {
    [[ " ${fineweb_overrides[*]}" =~ \ (parallel\.|(tp|pp|cp|ep|dp|sp)=) ]]
}

# Whether a batch is given, by its keys or by their other names.
_fineweb_has_batch() {
    [[ " ${fineweb_overrides[*]}" =~ \ ([a-z_.]*batch_(size|tokens)|[mg]bs)= ]]
}

# Set up the Python environment and, on a machine with an NPU, CANN's.
fineweb_set_up() {
    if ascend_has_device; then
        ascend_source || return 1
    fi
    bootstrap || return 1
    mkdir -p "$fineweb_work" || return 1
    fineweb_work="$(cd "$fineweb_work" && pwd -P)"
}

fineweb_print() { printf '== %s\n' "$*"; }

# Record the source of the folder's text, and refuse a second source.
_fineweb_check_source() {
    local wanted="FineWeb-Edu, $fineweb_files files" file="$fineweb_work/source.txt"
    [[ -z "$fineweb_data" ]] || wanted="$(readlink -f "$fineweb_data")"
    if [[ -e "$file" && "$(cat "$file")" != "$wanted" ]]; then
        _fineweb_error "$fineweb_work was made from $(cat "$file"), not from $wanted: choose another folder with --work" \
            "$fineweb_work 由 $(cat "$file") 制作，而不是 $wanted：请用 --work 另选目录"
        return 2
    fi
    printf '%s\n' "$wanted" >"$file.new" && mv "$file.new" "$file"
}

fineweb_text() {
    if [[ -n "$fineweb_data" ]]; then
        fineweb_data="$(readlink -f "$fineweb_data")"
        _fineweb_check_source || return 2
        fineweb_print "text: $fineweb_data"
        fineweb_text_path="$fineweb_data"
        return 0
    fi
    _fineweb_check_source || return 2
    fineweb_text_path="$fineweb_work/text"
    if [[ -e "$fineweb_work/text.complete" ]]; then
        fineweb_print "text: complete, $fineweb_text_path"
        return 0
    fi
    fineweb_print "text: downloading $fineweb_files files of FineWeb-Edu"
    if ! efficientbench-data download --num-files "$fineweb_files" --output "$fineweb_text_path"; then
        _fineweb_error "the download is not complete; call again to resume, or give your own text with --data PATH" \
            "下载未完成；再次调用即可继续，或用 --data PATH 给出自己的文本"
        return 1
    fi
    touch "$fineweb_work/text.complete"
}

fineweb_tokenizer() {
    if [[ -d "$fineweb_work/tokenizer" ]]; then
        fineweb_print "tokenizer: complete, $fineweb_work/tokenizer"
        return 0
    fi
    fineweb_print "tokenizer: training $FINEWEB_VOCABULARY tokens on the text"
    # With the tokens of chat, so that mid-training and SFT can continue the model.
    efficientbench-data train-tokenizer "$fineweb_text_path" --vocab-size "$FINEWEB_VOCABULARY" --chat \
        --output "$fineweb_work/tokenizer"
}

fineweb_tokens() {
    if [[ -e "$fineweb_work/tokens/fineweb.manifest.json" ]]; then
        fineweb_print "tokens: complete, $fineweb_work/tokens/fineweb"
        return 0
    fi
    fineweb_print "tokens: tokenizing the text"
    efficientbench-data tokenize "$fineweb_text_path" --output "$fineweb_work/tokens/fineweb" \
        --tokenizer "$fineweb_work/tokenizer"
}

# Print the device type of the run and how many such devices this machine has.
_fineweb_device() {
    (cd / && python3 - "$fineweb_device") <<'PYTHON'
import sys
from efficientbench.basics.language import in_users_language
from efficientbench.devices.registry import find_device
from efficientbench.running.errors import USERS_MISTAKES
try:
    device = find_device(sys.argv[1])
    print(device.type, 0 if device.memory_capacity_bytes() is None else device.count())
except USERS_MISTAKES as error:
    sys.exit(in_users_language(f"error: {error}"))
PYTHON
}

# Find the devices and the words of the run, which the command line can have wrong: before text is downloaded.
_fineweb_find_words() { # name
    local found
    if [[ -n "$fineweb_data" && ! -e "$fineweb_data" ]]; then
        _fineweb_error "--data $fineweb_data is not there" "--data $fineweb_data 不存在"
        return 2
    fi
    found="$(_fineweb_device)" || return 2
    read -r fineweb_type count <<<"$found"
    if [[ "$count" -eq 0 && "$fineweb_device" == auto ]] && ascend_has_device; then
        _fineweb_error "this machine has NPUs and they cannot be used: source launchers/setup_ascend.sh prints why; \
--device cpu trains on the CPU, shortened" \
            "本机有 NPU 但无法使用：source launchers/setup_ascend.sh 会说明原因；--device cpu 在 CPU 上缩短训练"
        return 2
    fi
    if [[ "$count" -eq 0 ]]; then
        fineweb_shortened=true
        fineweb_words=()
        local word
        for word in "${FINEWEB_CPU_OVERRIDES[@]}"; do
            # A batch of the command line is no multiple of ours, or says the same by another key.
            [[ "$word" == *batch_size=* ]] && _fineweb_has_batch || fineweb_words+=("$word")
        done
    else
        if [[ "$fineweb_mode" == dsw ]] && ! _fineweb_has_layout; then
            if $fineweb_fewer && [[ "$count" -lt "$fineweb_devices" ]]; then
                # The batch is shared out evenly, which 3 could not do.
                fineweb_devices=$((count < 2 ? 1 : 2))
            fi
            if [[ "$count" -lt "$fineweb_devices" ]]; then
                _fineweb_error "$fineweb_devices devices are wanted and $count of type $fineweb_type are here: \
--devices $count" "需要 $fineweb_devices 个设备，而此处有 $count 个 $fineweb_type：--devices $count"
                return 2
            fi
            fineweb_words=("parallel.dp=$fineweb_devices")
        fi
    fi
    fineweb_words+=("${fineweb_overrides[@]}")
    # Once there are tokens, the run itself comes next.
    [[ -e "$fineweb_work/tokens/fineweb.manifest.json" ]] ||
        efficientbench plan "$1" "device=$fineweb_type" "${fineweb_words[@]}" >/dev/null
}

fineweb_train() { # name
    if $fineweb_shortened; then
        fineweb_print "training: $1 on the $fineweb_type, shortened (${FINEWEB_CPU_OVERRIDES[*]})"
    else
        fineweb_print "training: $1"
    fi
    # --repeat keeps a complete run instead of training again.
    efficientbench run "$1" "$fineweb_mode" --repeat 1 \
        --data "$fineweb_work/tokens/fineweb" "device=$fineweb_type" "output=$fineweb_work/runs" "data.cache=$fineweb_work/cache" "${fineweb_words[@]}"
}

# Print the validation at the run's end, over tokens that it has not trained on.
fineweb_evaluate() { # name
    fineweb_print "evaluation"
    (cd / && python3 - "$fineweb_work/runs/$1") <<'PYTHON'
import json, pathlib, sys
from efficientbench.basics.language import in_users_language
records = sorted(pathlib.Path(sys.argv[1]).glob("seed_*/record.json"), key=lambda path: path.stat().st_mtime)
if not records:
    sys.exit(in_users_language(f"error: no run has left a record in {sys.argv[1]}"))
record = json.loads(records[-1].read_text(encoding="utf-8"))
def figure(key, unit):
    value = record[key]
    return f"n/a ({record['unavailable'].get(key, 'not measured')})" if value is None else f"{value:.4f} {unit}"
print(f"validation loss  {figure('validation_loss', 'nats')}")
print(f"bits per byte    {figure('bits_per_byte', 'bits')}")
print(f"record           {records[-1]}")
PYTHON
}

# Make what training needs, one call at a time: the nodes of a run share the folder.
_fineweb_prepare() {
    local status=0
    exec 8>>"$fineweb_work/lock" || return 1
    if ! flock -n 8; then
        fineweb_print "another call prepares $fineweb_work: waiting for it"
        flock 8
    fi
    { fineweb_text && fineweb_tokenizer && fineweb_tokens; } 8>&- || status=$?
    exec 8>&-
    return $status
}

# Run all stages in order, up to the first that fails.
fineweb_run_stages() {
    local name="base_d$fineweb_depth"
    _fineweb_find_words "$name" && _fineweb_prepare && fineweb_train "$name" || return $?
    if [[ "$fineweb_mode" == dlc && "${RANK:-${NODE_RANK:-0}}" -ne 0 ]]; then
        fineweb_print "evaluation: on node 0, which writes the record"
        return 0
    fi
    fineweb_evaluate "$name"
}
