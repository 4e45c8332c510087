#!/bin/bash
# A real Slurm on one machine, for tests: loopback only, no systemd, nothing outside DIR.
#
#     slurm_start.sh DIR SECOND [NODES]    the cluster at 127.SECOND.0.x; needs root
#     slurm_stop.sh DIR
#
# The controller is at 127.SECOND.0.254 and node nI at 127.SECOND.0.I, so that clusters of several
# test runs share no port. Each daemon has a host name of its own and a hosts file that knows all
# of them (namespaces of its own: nothing of this machine changes), as on a real cluster:
# `hostname` in a job says n1, and n1 is found from every node.
#
# DIR and its parents must be executable for all: munge refuses a socket below a folder of 0700.
# Debian and Ubuntu: apt-get install --no-install-recommends slurm-wlm slurm-client munge
set -eu
D=$(realpath -m "${1:?directory}"); B=${2:?second byte of the addresses}; N=${3:-2}
mkdir -p "$D"/{dev,etc,state,spool,log,pid,munge}; chmod 755 "$D"; chmod 700 "$D/munge"
dd if=/dev/urandom of="$D/munge/key" bs=1024 count=1 status=none; chmod 600 "$D/munge/key"

{ echo "127.0.0.1 localhost"; echo "127.$B.0.254 ctl"
  for i in $(seq 1 "$N"); do echo "127.$B.0.$i n$i"; done; } > "$D/etc/hosts"

# GPUs that are null devices: Slurm counts them, nobody computes on them.
for i in 0 1 2 3 4 5 6 7; do ln -sf /dev/null "$D/dev/nvidia$i"; done
printf 'AutoDetect=off\nName=gpu File=%s/dev/nvidia[0-7]\n' "$D" > "$D/etc/gres.conf"
echo "CgroupPlugin=cgroup/v1" > "$D/etc/cgroup.conf"

# No accounting: as on small clusters, sacct knows nothing. config_overrides: the nodes are what
# is said here, whatever this machine has.
cat > "$D/etc/slurm.conf" <<CONF
ClusterName=testbed
SlurmctldHost=ctl(127.$B.0.254)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$D/munge.sock
CryptoType=crypto/munge
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/pid/slurmctld.pid
SlurmdPidFile=$D/pid/slurmd.%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,bf_continue,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SlurmdParameters=config_overrides
KillWait=2
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=60
DefMemPerCPU=1000
$(for i in $(seq 1 "$N"); do
    echo "NodeName=n$i NodeHostname=n$i NodeAddr=127.$B.0.$i Port=16818 CPUs=128 RealMemory=2000000 Gres=gpu:8 State=UNKNOWN"
done)
PartitionName=gpu Nodes=n[1-$N] Default=YES MaxTime=2-0 State=UP
PartitionName=common Nodes=n[1-$N] MaxTime=INFINITE State=UP
CONF

# as HOST COMMAND...: with a host name and the hosts file of the cluster.
# shellcheck disable=SC2016  # its own variables
as() {
    unshare --uts --mount --propagation private bash -euc '
        hosts=$1; name=$2; shift 2
        hostname "$name"; mount --bind "$hosts" /etc/hosts; exec "$@"' as "$D/etc/hosts" "$@"
}
export SLURM_CONF=$D/etc/slurm.conf
munged --key-file="$D/munge/key" --socket="$D/munge.sock" --pid-file="$D/munge/munged.pid" \
    --log-file="$D/munge/munged.log" --seed-file="$D/munge/seed"
as ctl slurmctld -c
for i in $(seq 1 "$N"); do mkdir -p "$D/spool/n$i"; as "n$i" slurmd -N "n$i"; done
