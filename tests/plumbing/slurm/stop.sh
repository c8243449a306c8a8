#!/usr/bin/env bash
# Ends the cluster that start.sh began in DIR: cancels its jobs, then ends its processes by pid.
#
#   stop.sh DIR
set -uo pipefail

dir=$1
export SLURM_CONF="$dir/slurm.conf"

stop() { # PIDFILE NAME
  [[ -s "$1" ]] || return 0
  local pid
  pid=$(cat "$1")
  [[ "$(cat "/proc/$pid/comm" 2>/dev/null)" == "$2" ]] || return 0 # ended; the pid is another's
  kill -TERM "$pid"
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid"
}

if [[ -s "$dir/slurmctld.pid" ]]; then
  timeout 10 squeue -h -o %A | sort -u | xargs -r timeout 10 scancel --signal=KILL --full
  timeout 10 squeue -h -o %A | sort -u | xargs -r timeout 10 scancel
  for _ in $(seq 50); do
    [[ -z "$(timeout 5 squeue -h)" ]] && break
    sleep 0.2
  done
fi 2>/dev/null
stop "$dir/slurmd.pid" slurmd
stop "$dir/slurmctld.pid" slurmctld
stop "$dir/munge/munged.pid" munged
exit 0
