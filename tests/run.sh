#!/usr/bin/env bash
# Sets up if need be and runs the tests.
#
#   bash tests/run.sh [--all] [pytest arguments]
#
# --all adds the slow proofs (marker `proof`), but for cells of their matrices whose neighbours are tried; `-m long` runs
# those. Without arguments for pytest, one process for each core runs the tests, then a single one those that measure this
# machine's time or memory (marker `alone`), and one for each file those that need a GPU (marker `gpu`): a process in
# which the CPU stands in for it has none, and a fault of one file that leaves the device unusable would fail the others.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launchers/bootstrap.sh
source launchers/bootstrap.sh
bootstrap dev

wanted="not proof and not long"
if [[ "${1:-}" == "--all" ]]; then
    wanted="not long"
    shift
fi
if [[ $# -gt 0 ]]; then
    exec python3 -m pytest -m "$wanted" "$@"
fi

failed=0
# Once, for the hundreds of processes that tests start: where PYTHONDONTWRITEBYTECODE is set, each would compile anew, and
# each call of pytest all tests.
unset PYTHONDONTWRITEBYTECODE
python3 -m compileall -q -j 0 efficientbench data_tools launchers metrics tests/{oracles,replicas,support}
# The folders with the longest tests first, so that no process is left alone with one of them at the end. One thread in
# each: the processes share the cores.
OMP_NUM_THREADS=1 python3 -m pytest -m "($wanted) and not alone" --numprocesses "$(env -u OMP_NUM_THREADS nproc)" \
    --dist loadfile --no-loadscope-reorder tests/distributed tests/end_to_end tests/numerics tests/unit || failed=1
# Only their files, since a single process takes longer to import all tests than to run these. The unit tests come first:
# after runs that fill the memory, the system is busy for a while.
python3 tests/support/cold_libraries.py
mapfile -t alone < <(grep -rl --include='test_*.py' 'mark\.alone' tests | sort --reverse)
python3 -m pytest -m "($wanted) and alone" "${alone[@]}" || failed=1
if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    mapfile -t gpu < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
    for file in "${gpu[@]}"; do python3 -m pytest -m gpu "$file" || failed=1; done
fi
exit "$failed"
