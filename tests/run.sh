#!/usr/bin/env bash
# Sets up if need be and runs the tests.
#
#   bash tests/run.sh [--all] [pytest arguments]
#
# --all adds the slow proofs (marker `proof`). Without arguments for pytest two halves run at once, since neither keeps
# two cores busy, and then, with nothing beside them, the tests that measure this machine's time or memory (`alone`).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launchers/bootstrap.sh
source launchers/bootstrap.sh
bootstrap dev

wanted="not proof"
if [[ "${1:-}" == "--all" ]]; then
    wanted="proof or not proof"
    shift
fi
if [[ $# -gt 0 ]]; then
    exec python3 -m pytest -m "$wanted" "$@"
fi

run() { # marker expression, pytest arguments...
    local marks="($wanted) and $1"
    shift
    python3 -m pytest -p no:cacheprovider -m "$marks" "$@"
}

log="$(mktemp)"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$log"' EXIT
failed=0
longest=tests/end_to_end/test_survival.py # with the other half, so that both take about as long
run "not alone" tests/unit tests/numerics tests/distributed "$longest" >"$log" 2>&1 &
run "not alone" tests/end_to_end --ignore "$longest" || failed=1
wait $! || failed=1
cat "$log"
run alone tests || failed=1
exit "$failed"
