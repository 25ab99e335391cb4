#!/usr/bin/env bash
# The first process of a node: the kernel ends all others with it. In namespaces of mounts, processes and
# network of the node.
#
# usage: node.sh NUMBER STATE ASSETS CGROUP ADDRESSES DNS
set -euo pipefail

i=$1 state=$2 assets=$3 cgroup=$4 addresses=$5 dns=$6
own=$state/node-$i

hostname "node-$i"
# Handles of other network namespaces, which would keep them.
umount --recursive --lazy /run/netns 2>/dev/null || true
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount --bind "$own/lib" /var/lib
mkdir -p /run/netns /var/lib/kubelet /var/lib/containerd
echo "nameserver 172.30.0.1" >"$own/resolv.conf"
echo "127.0.0.1 localhost node-$i" >"$own/hosts"
mount --bind "$own/resolv.conf" /etc/resolv.conf
mount --bind "$own/hosts" /etc/hosts
# A kubelet sets these for the whole machine; it finds its values there already.
while read -r key value; do
    echo "$value" >"$own/$(basename "$key")"
    mount --bind "$own/$(basename "$key")" "/proc/sys/$key"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
mount --make-rshared /

routes='{"dst": "0.0.0.0/0"}' ranges="[{\"subnet\": \"10.244.$i.0/24\"}]"
routes6='{"dst": "::/0"}' ranges6="[{\"subnet\": \"fd00:10:244:$i::/64\"}]"
case $addresses in
    *,*) routes+=", $routes6" ranges+=", $ranges6" ;;
    *:*) routes=$routes6 ranges=$ranges6 ;;
esac
mkdir -p "$own/cni"
cat >"$own/cni/10-pods.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "mtu": 1500,
   "ipam": {"type": "host-local", "dataDir": "/run/cni", "routes": [$routes], "ranges": [$ranges]}},
  {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}
END

snapshotter=native
! grep -qw overlay /proc/filesystems || snapshotter=overlayfs
cat >"$own/containerd.toml" <<END
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "$snapshotter"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10.2"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["$assets/cni"]
  conf_dir = "$own/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
END

cat >"$own/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: ["$dns"]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
END

export PATH=$assets:$PATH
containerd --config "$own/containerd.toml" &
until ctr --address /run/containerd/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
# Once: a rebooted node has its images still.
if [ ! -e "$own/imported" ]; then
    ctr --address /run/containerd/containerd.sock --namespace k8s.io images import "$state/images.tar"
    touch "$own/imported"
fi
kubelet --config "$own/kubelet.yaml" --kubeconfig "$own/kubelet.conf" --hostname-override "node-$i" \
    --node-ip "$addresses" &
# With either of them the node ends, and `cluster.sh` says where its log is.
wait -n
