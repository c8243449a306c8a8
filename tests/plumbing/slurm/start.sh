#!/usr/bin/env bash
# Starts a one-node Slurm cluster of its own, for the tests; needs root and the Debian packages
# slurmctld slurmd slurm-client munge, but no systemd.
#
#   start.sh DIR CONTROLLER_PORT NODE_PORT
#
# Everything lies under DIR (configuration, state, logs, pids, munge's key and socket), so that a
# cluster of the machine's own stays untouched. Clients need SLURM_CONF=DIR/slurm.conf.
# stop.sh DIR ends it. The partition `urgent` evicts jobs of `main`.
set -euo pipefail

dir=$1 controller_port=$2 node_port=$3
node=polyaknode
cpus=2
export SLURM_CONF="$dir/slurm.conf"

die() {
  echo "start.sh: $*" >&2
  tail -n 15 "$dir"/log/*.log >&2 || true
  "$(dirname "$0")/stop.sh" "$dir"
  exit 1
}

[[ $EUID -eq 0 ]] || { echo "start.sh: needs root" >&2; exit 1; }
mkdir -p "$dir"/{log,state,spool,munge}
chmod 755 "$dir" "$dir"/{log,state,spool}
dd if=/dev/urandom of="$dir/munge/munge.key" bs=128 count=1 status=none
chown -R munge: "$dir/munge"
chmod 711 "$dir/munge"
chmod 400 "$dir/munge/munge.key"

# AccountingStorageType none: a cluster without accounting, where sacct fails.
# KillWait: seconds between SIGTERM and SIGKILL; GraceTime the same for an evicted job.
cat >"$SLURM_CONF" <<CONF
ClusterName=polyak
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=10
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=$node Default=NO MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
CONF

# Each goes to the background by itself and writes its pid; setsid, so that a signal to the
# caller's group does not reach them.
setsid runuser -u munge -- munged --force \
  --key-file="$dir/munge/munge.key" --socket="$dir/munge/munge.socket" \
  --pid-file="$dir/munge/munged.pid" --log-file="$dir/munge/munged.log" \
  --seed-file="$dir/munge/munged.seed" </dev/null >/dev/null 2>&1 || die "munged did not start"
for _ in $(seq 50); do
  [[ -S "$dir/munge/munge.socket" && -s "$dir/munge/munged.pid" ]] && break
  sleep 0.1
done
munge -n --socket="$dir/munge/munge.socket" | unmunge --socket="$dir/munge/munge.socket" \
  >/dev/null || die "munged does not answer"

# -N lets the node have another name than the machine.
setsid slurmctld -f "$SLURM_CONF" -c </dev/null >/dev/null 2>&1 || die "slurmctld did not start"
setsid slurmd -f "$SLURM_CONF" -N "$node" </dev/null >/dev/null 2>&1 || die "slurmd did not start"
state=unknown
for _ in $(seq 150); do
  state=$(timeout 5 sinfo -h -N -p main -o %t 2>/dev/null || true)
  [[ "$state" == idle* ]] && exit 0
  sleep 0.2
done
die "the node is '$state', not idle"
