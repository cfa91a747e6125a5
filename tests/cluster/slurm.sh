#!/bin/bash
# A real Slurm on this machine: one node, every file in one temporary directory. Needs root; no systemd, no cgroups.
#   apt-get install -y --no-install-recommends slurm-wlm munge
#   bash slurm.sh run COMMAND...
_slurm_launch() { # ORDER-NAME COMMAND...: a daemon in the background; its pid in pids/ORDER-NAME
    local name=$1; shift
    "$@" >>"$SLURM_DIR/$name.out" 2>&1 </dev/null & disown; echo $! >"$SLURM_DIR/pids/$name"
}
_slurm_wait() { # ORDER-NAME COMMAND...: until the command succeeds, at most 60 s
    local name=$1 end=$((SECONDS + 60)); shift
    while [ $SECONDS -lt $end ]; do timeout 5 "$@" >/dev/null 2>&1 && return 0; sleep 0.2; done
    echo "slurm.sh: $name did not start; its output ends with:" >&2; tail -n 5 "$SLURM_DIR/$name.out" >&2; return 1
}
slurm_start() {
    local dir host memory port=${SLURM_PORT:-16817}
    host=$(hostname -s); memory=$(($(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 512))
    dir=$(mktemp -d "${TMPDIR:-/tmp}/slurm.XXXXXX") && chmod 755 "$dir" || return 1   # munged refuses 700 for its socket
    export SLURM_DIR=$dir SLURM_CONF=$dir/slurm.conf SLURM_OLD_PATH=$PATH
    mkdir -p "$dir/bin" "$dir/state" "$dir/spool" "$dir/munge" "$dir/pids" && chmod 700 "$dir/munge"
    (umask 077; head -c 128 /dev/urandom >"$dir/munge/key")
    _slurm_launch 1-munged munged --foreground --force --num-threads=2 --key-file="$dir/munge/key" \
        --socket="$dir/munge.socket" --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    _slurm_wait 1-munged munge -S "$dir/munge.socket" -n || return 1
    printf '%s\n' ClusterName=test "SlurmctldHost=$host(127.0.0.1)" SlurmUser=root AuthType=auth/munge \
        "AuthInfo=socket=$dir/munge.socket" SlurmctldPort="$port" SlurmdPort=$((port + 1)) \
        SlurmctldPidFile="$dir/slurmctld.pid" SlurmdPidFile="$dir/slurmd.pid" StateSaveLocation="$dir/state" \
        SlurmdSpoolDir="$dir/spool" ProctrackType=proctrack/linuxproc TaskPlugin=task/none MpiDefault=none \
        JobAcctGatherType=jobacct_gather/none SelectType=select/cons_tres SelectTypeParameters=CR_Core \
        SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2 ReturnToService=2 \
        PreemptType=preempt/partition_prio PreemptMode=REQUEUE KillWait="${SLURM_KILL_WAIT:-5}" MinJobAge=3600 \
        "NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN" \
        "PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=${SLURM_GRACE:-0}" \
        "PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF" >"$SLURM_CONF"
    printf '%s\n' '#!/bin/sh' '# What submitit asks of sacct; squeue remembers finished jobs for MinJobAge seconds.' \
        'echo "JobID|State|NodeList"' 'exec squeue --all --array --noheader --states=all --format="%i|%T|%N"' >"$dir/bin/sacct"
    chmod +x "$dir/bin/sacct"; export PATH=$dir/bin:$PATH
    _slurm_launch 4-slurmctld slurmctld -D -i -c; _slurm_wait 4-slurmctld scontrol ping || return 1
    _slurm_launch 5-slurmd slurmd -D -N "$host"; _slurm_wait 5-slurmd sh -c 'sinfo -h -p low -o %T | grep -q idle'
}
_slurm_steps() { # the slurmstepd processes of this Slurm, by its slurm.conf in their environment
    local p; for p in $(pgrep -x slurmstepd); do grep -qzxF "SLURM_CONF=$SLURM_CONF" "/proc/$p/environ" 2>/dev/null && echo "$p"; done
}
slurm_stop() { # ends the jobs and the daemons of this directory, and nothing else
    [ -d "${SLURM_DIR:-}" ] || return 0
    local file pid; timeout 5 scancel --user="$(id -un)" 2>/dev/null
    for _ in $(seq 75); do [ -z "$(timeout 5 squeue -h 2>/dev/null)$(_slurm_steps)" ] && break; sleep 0.2; done
    for pid in $(_slurm_steps); do kill -9 "$pid" 2>/dev/null; done   # waits for an answer that it will not get
    for file in $(ls -r "$SLURM_DIR"/pids/*); do
        pid=$(cat "$file"); kill "$pid" 2>/dev/null
        for _ in $(seq 75); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.2; done; kill -9 "$pid" 2>/dev/null
    done
    rm -rf "$SLURM_DIR"; export PATH=$SLURM_OLD_PATH; unset SLURM_CONF SLURM_DIR SLURM_OLD_PATH
}
if [ "${1:-}" = run ]; then shift; trap slurm_stop EXIT; trap "exit 143" INT TERM; slurm_start && "$@"; fi
