#!/usr/bin/env bash
# Sets up if need be and runs the tests.
#
#   bash tests/run.sh [--all] [pytest arguments]
#
# --all adds the slow proofs (marker `proof`).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launchers/bootstrap.sh
source launchers/bootstrap.sh
bootstrap dev

select=(-m "not proof")
if [[ "${1:-}" == "--all" ]]; then
    select=()
    shift
fi
exec python3 -m pytest "${select[@]}" "$@"
