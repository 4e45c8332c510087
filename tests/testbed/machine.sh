#!/bin/bash
# The first process of a machine of its own, in namespaces that are new: files, processes, network,
# host name. What is made here is in memory and in those namespaces: nothing of the machine below
# changes, and all of it, containers too, is gone when this process ends. It ends when its standard
# input does.
#     unshare --mount --net --pid --ipc --uts --fork --mount-proc machine.sh NAME KIND DEVICES
set -euo pipefail
name=$1 kind=$2 devices=$3

mount -t tmpfs -o mode=755 machine /run
for folder in /etc /usr/local /root /var /mnt; do
    mkdir -p "/run/over$folder" "/run/work$folder"
    mount -t overlay overlay \
        -o "lowerdir=$folder,upperdir=/run/over$folder,workdir=/run/work$folder" "$folder"
done
mkdir -p /root/.cache /root/kimi
mount -t tmpfs machine /root/.cache
mkdir -p /root/.cache/huggingface /mnt/sfs_turbo/.cache

# /dev is the kernel's own for all namespaces; so it is another one here.
mkdir -p /run/dev
mount -t tmpfs -o mode=755 machine /run/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /run/dev
mkdir /run/dev/shm /run/dev/pts /run/dev/mqueue
mount -t tmpfs -o mode=1777 machine /run/dev/shm
mount -t mqueue machine /run/dev/mqueue
mount --rbind /dev/pts /run/dev/pts
ln -s pts/ptmx /run/dev/ptmx
ln -s /proc/self/fd /run/dev/fd
mount --move /run/dev /dev

# Twins of /dev/null where the accelerators would be.
node() { mknod -m 666 "$1" c 1 3; }

ascend() {
    local number name
    for ((number = 0; number < devices; number++)); do node "/dev/davinci$number"; done
    for name in davinci_manager devmm_svm hisi_hdc; do node "/dev/$name"; done
    mkdir -p /usr/local/dcmi /usr/local/Ascend/driver/{tools,lib64}
    echo of-the-host > /usr/local/dcmi/mark
    echo of-the-host > /usr/local/Ascend/driver/lib64/mark
    echo Version=of-the-host > /usr/local/Ascend/driver/version.info
    echo of-the-host > /etc/ascend_install.info
    echo address_0=192.0.2.200 > /etc/hccn.conf
    for name in /usr/local/bin/npu-smi /usr/local/Ascend/driver/tools/hccn_tool; do
        printf '#!/bin/sh\necho of-the-host\n' > "$name"
        chmod 755 "$name"
    done
}

nvidia() {
    local number name
    for ((number = 0; number < devices; number++)); do node "/dev/nvidia$number"; done
    for name in nvidiactl nvidia-uvm; do node "/dev/$name"; done
    printf '#!/bin/sh\necho of-the-host\n' > /usr/local/bin/nvidia-smi
    chmod 755 /usr/local/bin/nvidia-smi
    mkdir -p /etc/cdi
    {
        printf 'cdiVersion: "0.3.0"\nkind: nvidia.com/gpu\ncontainerEdits:\n  deviceNodes:\n'
        printf '  - path: /dev/%s\n' nvidiactl nvidia-uvm
        printf '  mounts:\n  - {hostPath: %s, containerPath: %s, options: [ro, bind]}\n' \
            /usr/local/bin/nvidia-smi /usr/bin/nvidia-smi
        printf 'devices:\n'
        for ((number = 0; number < devices; number++)); do
            printf -- '- name: "%d"\n  containerEdits: {deviceNodes: [{path: /dev/nvidia%d}]}\n' \
                "$number" "$number"
        done
        printf -- '- name: all\n  containerEdits:\n    deviceNodes:\n'
        for ((number = 0; number < devices; number++)); do
            printf '    - path: /dev/nvidia%d\n' "$number"
        done
    } > /etc/cdi/nvidia.yaml
}

amd() {
    local number
    node /dev/kfd
    mkdir /dev/dri
    for ((number = 0; number < devices; number++)); do node "/dev/dri/renderD$((128 + number))"; done
}

"$kind"

# As docker does, a name without a registry is one of docker.io.
mkdir -p /etc/containers
printf 'unqualified-search-registries = ["docker.io"]\nshort-name-mode = "permissive"\n' \
    > /etc/containers/registries.conf
rm -rf /etc/containers/registries.conf.d
# There is no registry, and nobody who would know where one is.
rm -f /etc/resolv.conf
echo nameserver 100.64.0.53 > /etc/resolv.conf
mkdir -p /run/pod
hostname "$name"
ip link set lo up
echo ready
while read -r _; do :; done
