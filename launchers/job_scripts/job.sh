# shellcheck shell=bash
# What the scripts that `efficientbench launch` writes have in common. They source this file, then call
#
#   job_modules NAME...                              module load
#   bootstrap                                        the Python environment (bootstrap.sh)
#   job_slurm [--container-OPTION...] COMMAND...     under sbatch: COMMAND once on each node, requeued after SIGTERM
#   job_torchrun TORCHRUN_OPTION... -- COMMAND...    on each node: torchrun with COMMAND as its one process
#
# Options of srun that begin with --container are those of pyxis.
#
# COMMAND starts this node's ranks itself. A run that was asked to stop and has saved its state exits with 143.

_job_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
# shellcheck source=launchers/bootstrap.sh
source "$_job_root/launchers/bootstrap.sh"

# Run a command to its end and return its exit status. The command has a process group of its own, so that Ctrl-C,
# SIGTERM and a terminal that is closed reach it through HOW_TO_STOP alone: it would not finish saving if it received a
# signal twice.
_job_run() { # how_to_stop command...
    local how_to_stop="$1" status interrupted process
    shift
    set -m
    "$@" </dev/null &
    process=$!
    set +m
    trap 'interrupted=1; "$how_to_stop" "$process"' TERM INT HUP
    while :; do
        interrupted=""
        status=0
        wait "$process" || status=$?
        # A signal ends the wait, not the command.
        [[ -n "$interrupted" ]] || break
    done
    trap - TERM INT HUP
    return "$status"
}

# Load modules of the cluster (Environment Modules or Lmod) into this shell; exit with 2 where one cannot be loaded.
job_modules() { # name...
    local flags=$- file name failed=""
    # The programs of modules read variables that may be unset, and end with tests that fail.
    set +eu
    for file in /etc/profile.d/{lmod,z00_lmod,modules}.sh "${LMOD_PKG:-/usr/share/lmod/lmod}/init/bash" \
        "${MODULESHOME:-/usr/share/modules}/init/bash"; do
        [[ "$(type -t module)" != function && -r "$file" ]] || continue
        # shellcheck disable=SC1090  # found at run time
        source "$file"
    done
    if [[ "$(type -t module)" != function ]]; then
        echo "error: node $(uname -n) has no module command (Environment Modules, Lmod): leave --module out" >&2
        exit 2
    fi
    for name in "$@"; do
        module load "$name" || failed="$name"
        [[ -z "$failed" ]] || break
    done
    [[ "$flags" != *e* ]] || set -e
    [[ "$flags" != *u* ]] || set -u
    if [[ -n "$failed" ]]; then
        echo "error: module load $failed failed on node $(uname -n): module avail lists the available modules" >&2
        exit 2
    fi
}

# Print the number of this job. In a task of an array, SLURM_JOB_ID alone may mean the whole array.
_job_id() {
    if [[ -n "${SLURM_ARRAY_JOB_ID:-}" ]]; then
        printf '%s' "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    else
        printf '%s' "$SLURM_JOB_ID"
    fi
}

_job_stop_step() { scancel --signal=TERM "$(_job_id)" 2>/dev/null || true; }

# Slurm also sends SIGTERM where a user has cancelled the job or its time is over: then the job is COMPLETING.
_job_is_running() { [[ "$(scontrol show job --oneliner "$(_job_id)")" == *" JobState=RUNNING "* ]]; }

job_slurm() { # command...
    local status=0 hosts srun=(srun)
    while [[ "$1" == --container-* ]]; do
        srun+=("$1")
        shift
    done
    [[ "$SLURM_JOB_ID" =~ ^[0-9]+$ ]] || return 2
    hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
    # From the environment of the user who submitted the job, these would contradict Slurm.
    unset RANK WORLD_SIZE NODE_RANK
    # A port below the kernel's ephemeral ones, and a different one for every job that shares a node.
    export MASTER_ADDR="${hosts%%$'\n'*}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) NNODES="$SLURM_JOB_NUM_NODES"
    # The nodes know each other by it; srun passes it to them.
    : "${EFFICIENTBENCH_SECRET:=$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')}"
    export EFFICIENTBENCH_SECRET
    # A node whose ranks have ended must not end the others' while those still save.
    # shellcheck disable=SC2016  # NODE_RANK is known on the node alone
    _job_run _job_stop_step "${srun[@]}" --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=120 \
        --cpus-per-task="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}" \
        bash -c 'NODE_RANK="$SLURM_NODEID" exec "$@"' node "$@" || status=$?
    if [[ $status -eq 143 ]] && _job_is_running; then
        echo "stopped after saving its state: requeued, and will resume from there" >&2
        scontrol requeue "$(_job_id)" || echo "error: job $(_job_id) cannot be requeued: submit it again" >&2
    fi
    return "$status"
}

# Return 0 where an address is this node's, but the host's name does not lead to it.
_job_is_unknown_address() { # host
    (cd / && python3 - "$1") <<'PYTHON'
import ipaddress, socket, sys
def addresses(host):
    try:
        return {found[4][0]: found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {}
host, own = sys.argv[1], (socket.gethostname(), socket.getfqdn())
if host in own:
    sys.exit(1)
for address, family in addresses(host).items():
    if ipaddress.ip_address(address).is_loopback or any(address in addresses(name) for name in own):
        sys.exit(1)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            continue
    sys.exit(0)
sys.exit(1)
PYTHON
}

# Print the port above MASTER_PORT. Only digits may come into the sum: bash would run commands in an arithmetic
# expression.
job_training_port() {
    if [[ ! "$MASTER_PORT" =~ ^[1-9][0-9]{0,4}$ || "$MASTER_PORT" -gt 65534 ]]; then
        printf 'error: MASTER_PORT is %q: a number from 1 to 65534\n' "$MASTER_PORT" >&2
        return 2
    fi
    printf '%s' $((MASTER_PORT + 1))
}

# Print the settings of torchrun's c10d rendezvous. torchrun recognises the node with MASTER_ADDR by the addresses of
# the host's name alone; another address, as of a second network card, needs is_host.
job_c10d() { # timeout_s
    local is_host=""
    ! _job_is_unknown_address "$MASTER_ADDR" || is_host=",is_host=true"
    printf '%s' "join_timeout=$1,read_timeout=$1$is_host"
}

_job_stop_node() { # torchrun's process
    if [[ -s "$_job_state/process" ]]; then
        # Not through torchrun, which would allow only 30 s and end with an error of its own.
        kill -TERM -- "-$(<"$_job_state/process")" 2>/dev/null || true
    else
        kill -TERM "$1" 2>/dev/null || true
    fi
}

job_torchrun() { # torchrun_option... -- command...
    local options=() status=0
    while [[ "$1" != "--" ]]; do
        options+=("$1")
        shift
    done
    shift
    _job_state="$(mktemp -d)"
    trap 'rm -rf -- "$_job_state"' EXIT
    # As python3 -m, without the working directory, whose torch.py would be imported. Python 3.10 does not know the
    # variable; 3.13 imports before the first line of what `-c` gives.
    _job_run _job_stop_node env PYTHONSAFEPATH=1 python3 -c 'import sys; sys.path = [each for each in sys.path if each]; import runpy
runpy.run_module(sys.argv.pop(1), {}, "__main__", True)' torch.distributed.run "${options[@]}" --no-python \
        bash "$_job_root/launchers/job_scripts/torchrun_node.sh" "$_job_state" "$@" || status=$?
    if [[ -s "$_job_state/status" ]]; then
        status="$(<"$_job_state/status")"
    elif [[ $status -ne 0 && ! -s "$_job_state/process" ]]; then
        echo "error: torchrun did not bring all nodes together at $MASTER_ADDR:$MASTER_PORT: see whether this script" \
            "runs on each of them, and whether they reach this port" >&2
    fi
    return "$status"
}
