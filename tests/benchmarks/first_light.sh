#!/usr/bin/env bash
# The first half hour on a GPU: is every path right, how fast is it, and what does a whole run cost?
#
#   bash tests/benchmarks/first_light.sh 1 FOLDER    right: the tests marked gpu, six processes at a time
#   bash tests/benchmarks/first_light.sh 2 FOLDER    fast: the headline, the variants with kernels of their own, generation
#   bash tests/benchmarks/first_light.sh 3 FOLDER    whole: a stopped and resumed run, both meters, lengths, the matrix
#
# Each call ends within ten minutes, goes on after a failure, and leaves what it printed and measured in FOLDER.
# Speed says nothing of a path that is wrong: read the results of 1 first. It needs a python3 (or PYTHON) in whose
# environment torch with CUDA, megatron-core and the packages of setup.py are, fla-core and pytest among them; it
# installs nothing and downloads nothing. LIMIT_S sets another limit than 570 seconds. Where the repository is:
#
#   python3 tests/benchmarks/gpu_speed.py --read FOLDER/2_speed.json FOLDER/3_speed.json --write
set -uo pipefail

stage="${1:?1, 2 or 3}" folder="$(mkdir -p "${2:?a folder for the results}" && cd "$2" && pwd)"
python="${PYTHON:-python3}" limit_s="${LIMIT_S:-570}"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 COLUMNS=170
failed=()

left_s() { echo $((limit_s - SECONDS)); }

# step NAME SECONDS COMMAND...: for no longer than that, nor than what is left of the call; output also in FOLDER.
step() {
    local name="$1" most_s="$2" begin_s=$SECONDS
    shift 2
    ((most_s < $(left_s))) || most_s="$(left_s)"
    printf '== %s, at most %d s\n' "$name" "$most_s"
    if ((most_s < 5)); then
        failed+=("$name (no time was left)")
        return
    fi
    timeout --signal=TERM --kill-after=15 "$most_s" "$@" 2>&1 | tee "$folder/${stage}_$name.log"
    local status="${PIPESTATUS[0]}"
    printf -- '-- %s: exit status %d after %d s\n' "$name" "$status" $((SECONDS - begin_s))
    [[ "$status" -eq 0 ]] || failed+=("$name ($status)")
}

right() {
    step machine 30 nvidia-smi
    step doctor 60 "$python" -m efficientbench.cli doctor
    # One process compiles: many tests do at once.
    export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
    local pytest=("$python" -m pytest -p no:cacheprovider -m gpu -v --tb=short --durations=10)
    # Kernels first: what is wrong there is wrong in the whole runs. A file has a process of its own, then each run.
    # shellcheck disable=SC2016
    step kernels 240 bash -c 'grep -rl --include="test_*.py" "mark\.gpu" tests | grep -v end_to_end | sort |
        xargs -d "\n" -P 6 -I FILE "$@" FILE' each "${pytest[@]}"
    # shellcheck disable=SC2016
    step runs 500 bash -c '"$1" -m pytest -p no:cacheprovider -m gpu --collect-only -q \
        tests/end_to_end/test_gpu.py | grep "::" | xargs -d "\n" -P 6 -I TEST "$@" TEST' each "${pytest[@]}"
}

fast() {
    step speed 560 "$python" tests/benchmarks/gpu_speed.py --parts headline risks generation \
        --limit-s "$((limit_s - 110))" --output "$folder/2_speed.json"
}

whole() {
    local work
    work="$(mktemp -d)"
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    local run=("$python" -m efficientbench.cli run gqa_0.5B device=cuda training.tokens=4e6 "output=$work"
        "data.cache=$work/data")
    # Stopped as a scheduler stops it, after start and some steps: it saves, and the same command resumes.
    # shellcheck disable=SC2016
    step stopped_run 150 bash -c 'timeout --signal=TERM --kill-after=90 50 "$@"; (($? == 124))' stop "${run[@]}"
    step resumed_run 150 "${run[@]}"
    cp "$work/gqa_0.5B/record.json" "$folder/3_record.json" || failed+=("record")
    cp "$work/gqa_0.5B/steps.jsonl" "$folder/3_steps.jsonl" || failed+=("steps")
    step meters 90 "$python" tests/benchmarks/gpu_meters.py --seconds 30
    step speed 560 "$python" tests/benchmarks/gpu_speed.py --parts lengths transformers matrix \
        --limit-s "$(($(left_s) - 110))" --output "$folder/3_speed.json"
}

case "$stage" in
    1) right ;;
    2) fast ;;
    3) whole ;;
    *) printf 'error: %s is no part: 1, 2 or 3\n' "$stage" >&2 && exit 2 ;;
esac
printf '== %d s in all; failed: %s\n' "$SECONDS" "${failed[*]:-nothing}"
[[ ${#failed[@]} -eq 0 ]]
