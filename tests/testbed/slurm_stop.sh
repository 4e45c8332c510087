#!/bin/bash
# Stop the cluster of slurm_start.sh, by the numbers of its own processes.   slurm_stop.sh DIR
D=$(realpath -m "${1:?directory}")
pids=()
for file in "$D"/pid/slurmctld.pid "$D"/pid/slurmd.*.pid "$D"/munge/munged.pid; do
    [ -s "$file" ] && pids+=("$(cat "$file")")
done
# What its jobs run: each holds a file of the cluster's spool folder, or was told its slurm.conf.
for environ in /proc/[0-9]*/environ; do
    if grep -qsz "^SLURM_CONF=$D/etc/slurm.conf$" "$environ" && grep -qsz '^SLURM_JOB_ID=' "$environ"
    then pid=${environ#/proc/}; pids+=("${pid%/environ}"); fi
done
[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2> /dev/null
for pid in "${pids[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.05; done
    kill -KILL "$pid" 2> /dev/null
done
exit 0
