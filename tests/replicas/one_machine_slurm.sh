#!/usr/bin/env bash
# A Slurm of this machine alone, with two nodes (this host's name and localhost), for as long as a command runs. Jobs of
# the partition "urgent" take the nodes of those of "main", which have 30 s to save.
#
#   bash tests/replicas/one_machine_slurm.sh FOLDER COMMAND...
#
# As root, with Debian's packages slurmctld, slurmd, slurm-client and munge. Its state, keys and logs lie in FOLDER, it
# listens at ports that were free, and no service of the machine is touched. The status is COMMAND's.
set -euo pipefail

folder="$(mkdir -p "$1" && cd "$1" && pwd -P)"
shift
host="$(hostname -s)"
mkdir -p "$folder"/{state,spool,munge}
chmod 0755 "$folder" "$folder/munge"

mapfile -t ports < <(cd / && python3 - <<'PYTHON'
import socket
held = [socket.socket() for _ in range(3)]
for each in held:
    each.bind(("127.0.0.1", 0))
    print(each.getsockname()[1])
PYTHON
)

cat >"$folder/slurm.conf" <<CONF
ClusterName=one_machine
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# A cluster looks once in a minute or half a minute for jobs whose time has come; tests need not wait for it.
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
ReturnToService=2
KillWait=30
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=$host NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=2 RealMemory=2000
NodeName=localhost NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=2 RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
CONF
export SLURM_CONF="$folder/slurm.conf"

daemons=()
# shellcheck disable=SC2317,SC2329  # called by the trap
end() {
    trap - EXIT
    [[ ${#daemons[@]} -eq 0 ]] || kill "${daemons[@]}" 2>/dev/null || true
    wait
}
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 0400 "$folder/munge/key"
munged --force --foreground --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
    --log-file="$folder/munge/log" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
    >"$folder/munge/out" 2>&1 &
daemons+=($!)
for _ in {1..100}; do [[ ! -S "$folder/munge/socket" ]] || break && sleep 0.1; done
slurmctld -D >"$folder/slurmctld.out" 2>&1 &
daemons+=($!)
for node in "$host" localhost; do
    mkdir -p "$folder/spool/$node"
    slurmd -D -N "$node" >"$folder/slurmd.$node.out" 2>&1 &
    daemons+=($!)
done

for _ in {1..1200}; do
    [[ "$(sinfo --noheader --partition=main --format=%t%D 2>/dev/null)" != idle2 ]] || break
    sleep 0.1
done
if [[ "$(sinfo --noheader --partition=main --format=%t%D)" != idle2 ]]; then
    echo "error: the nodes did not come up within 120 s: see the logs in $folder" >&2
    exit 1
fi
status=0
"$@" || status=$?
exit "$status"
