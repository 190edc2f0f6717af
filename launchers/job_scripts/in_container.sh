#!/usr/bin/env bash
# Sets up the environment of a run inside of a container, then starts a command there.
#
#   bash launchers/job_scripts/in_container.sh [EXTRA...] -- COMMAND...     EXTRA: of launchers/bootstrap.sh
#
# COMMAND may be a function of job.sh. An image that has efficientbench runs its own. In any other image this
# repository's is set up beside the image's torch, once, in .venv-container.
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
# Some engines pass on the host's, whose Python is not here.
unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME
# Packages in ~/.local are of the host's Python. A folder called efficientbench must not hide ours.
export PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1
# The host's .venv stays as it is.
export EFFICIENTBENCH_VENV=.venv-container
# shellcheck source=launchers/job_scripts/job.sh
source "$folder/job.sh"
# shellcheck source=launchers/environment/ascend_env.sh
source "$folder/../environment/ascend_env.sh"

if ascend_find_cann >/dev/null; then
    ascend_source
fi
# An image that has efficientbench needs no bootstrap, which would do it.
_bootstrap_clean_path
extras=()
while [[ $# -gt 0 && "$1" != "--" ]]; do
    extras+=("$1")
    shift
done
if [[ $# -lt 2 ]]; then
    echo "usage: bash launchers/job_scripts/in_container.sh [EXTRA...] -- COMMAND..." >&2
    exit 2
fi
shift
command -v efficientbench >/dev/null || bootstrap "${extras[@]}"
# A command replaces this shell, so that signals reach it.
[[ "$(type -t "$1")" == function ]] || exec "$@"
"$@"
