#!/usr/bin/env bash
# A Kubernetes cluster in network namespaces of one machine. `cargo xtask cluster` calls this, as root.
#
# usage: cluster.sh up [PROXY] | e2e PROXY REPORT [FOCUS] | guide | reboot NUMBER | kubectl ARGUMENT… | down
#
# Everything of a cluster is in its namespaces (shunt-NAME…), its cgroups and its folder, so that `down`
# finds it without a record. Clusters of different names do not meet: their addresses are the same, but in
# different namespaces.
set -euo pipefail

here=$(dirname "$(realpath "$0")")
repository=$(realpath "$here/../..")
name=${SHUNT_CLUSTER:-cluster}
nodes=${SHUNT_CLUSTER_NODES:-3}
control=shunt-$name
families=${SHUNT_CLUSTER_FAMILIES:-dual}
state=/var/tmp/shunt-cluster/$name
assets=${KUBEBUILDER_ASSETS:-}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$repository/Cargo.toml")

rendered=$repository/tests/fixtures/chart/kubeadm.yaml
# shellcheck source=guide.sh
source "$here/guide.sh"

say() { echo "==> $*"; }
fail() { echo "cluster: $*" >&2; exit 1; }

# What the cluster has of a thing of each family. Nodes have addresses of both, as most machines do.
of_families() { # IPV4 IPV6
    case $families in
        dual) echo "$1,$2" ;;
        ipv4) echo "$1" ;;
        ipv6) echo "$2" ;;
        *) fail "SHUNT_CLUSTER_FAMILIES is $families; choose dual, ipv4 or ipv6" ;;
    esac
}
first() { of_families "$@" | cut -d, -f1; }
service_cidrs=$(of_families 10.96.0.0/16 fd00:10:96::/112)
cluster_cidrs=$(of_families 10.244.0.0/16 fd00:10:244::/56)
api=$(first 172.30.0.1 fd30::1)
dns=$(first 10.96.0.10 fd00:10:96::a)
server=$(first 172.30.0.1:6443 "[fd30::1]:6443")

inside() { local namespace=$1; shift; nsenter --net="/run/netns/$namespace" "$@"; }
kubectl() { inside "$control" "$assets/kubectl" --kubeconfig "$state/admin.conf" "$@"; }

# Waits until a command succeeds.
until_true() { # SECONDS WHAT COMMAND…
    local end=$((SECONDS + $1)) what=$2; shift 2
    until "$@" >"$state/last-try" 2>&1; do
        [ $SECONDS -lt $end ] || fail "$what: no success in time: $(tail -n 3 "$state/last-try"); logs are in $state/log"
        sleep 0.3
    done
}

# Starts a program of the control plane, which outlives this script.
start() { # NAME COMMAND…
    local what=$1; shift
    inside "$control" setsid "$@" >>"$state/log/$what.log" 2>&1 </dev/null &
    echo $! >"$state/pid/$what"
}

kubeconfig() { # FILE TOKEN
    cat >"$1" <<END
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: "https://$server", certificate-authority: $state/pki/apiserver.crt}}]
users: [{name: it, user: {token: "$2"}}]
END
}

control_network() {
    ip netns add "$control"
    local ip="ip -n $control"
    inside "$control" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
        net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1 \
        net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0
    $ip link set lo up
    # The client of load balancers: its address is not one of the nodes' subnet.
    $ip address add 192.0.2.1/32 dev lo
    $ip address add 2001:db8:2::1/128 dev lo
    # Where packets to load balancers that are gone vanish.
    $ip link add void type veth peer name nowhere
    $ip link set void arp off up
    $ip link set nowhere up
    $ip link add nodes type bridge
    $ip link set nodes up
    $ip address add 172.30.0.1/24 dev nodes
    $ip address add fd30::1/64 dev nodes nodad
    for i in $(seq "$nodes"); do
        $ip route add "10.244.$i.0/24" via "172.30.0.1$i"
        $ip route add "fd00:10:244:$i::/64" via "fd30::1$i"
    done
}

control_plane() {
    local token; token=$(openssl rand -hex 16)
    echo "$token,admin,admin,system:masters" >"$state/tokens"
    for i in $(seq "$nodes"); do echo "$token-$i,system:node:node-$i,node-$i,system:nodes" >>"$state/tokens"; done
    kubeconfig "$state/admin.conf" "$token"
    for i in $(seq "$nodes"); do kubeconfig "$state/node-$i/kubelet.conf" "$token-$i"; done
    openssl genrsa -out "$state/pki/accounts.key" 2048 2>/dev/null
    start etcd "$assets/etcd" --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn
    start_api_server
    # It makes its certificate, which all others read.
    until_true 120 "the API server" kubectl get --raw /readyz
    start kube-controller-manager "$assets/kube-controller-manager" --kubeconfig "$state/admin.conf" \
        --leader-elect=false --use-service-account-credentials --root-ca-file "$state/pki/apiserver.crt" \
        --service-account-private-key-file "$state/pki/accounts.key" --cluster-cidr "$cluster_cidrs"
    start kube-scheduler "$assets/kube-scheduler" --kubeconfig "$state/admin.conf" --leader-elect=false
    start stand-ins python3 "$here/stand_ins.py" "$state/admin.conf" "$nodes"
}

start_api_server() {
    start kube-apiserver "$assets/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
        --cert-dir "$state/pki" --bind-address :: --advertise-address "$api" --authorization-mode Node,RBAC \
        --kubelet-preferred-address-types InternalIP --token-auth-file "$state/tokens" --allow-privileged \
        --service-cluster-ip-range "$service_cidrs" \
        --service-account-issuer https://kubernetes.default.svc --enable-aggregator-routing \
        --service-account-key-file "$state/pki/accounts.key" \
        --service-account-signing-key-file "$state/pki/accounts.key"
}

node_network() { # NUMBER
    local i=$1 namespace=$control-node-$1 ip="ip -n $control-node-$1"
    ip netns add "$namespace"
    # A node that boots again has the same address as before, or its neighbours would look for the old one.
    ip -n "$control" link add "node-$i" type veth \
        peer name eth0 address "$(printf 02:00:00:00:00:%02x "$i")" netns "$namespace"
    ip -n "$control" link set "node-$i" master nodes up
    # kubelets set these, but some CNI plugins and tests look at once.
    inside "$namespace" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
        net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1
    $ip link set lo up
    $ip link set eth0 up
    $ip address add "172.30.0.1$i/24" dev eth0
    $ip address add "fd30::1$i/64" dev eth0 nodad
    $ip route add default via 172.30.0.1
    $ip route add default via fd30::1
    for other in $(seq "$nodes"); do
        [ "$other" != "$i" ] || continue
        $ip route add "10.244.$other.0/24" via "172.30.0.1$other"
        $ip route add "fd00:10:244:$other::/64" via "fd30::1$other"
    done
}

# The Node with its ranges of pods, which no controller chooses: the routes are there before.
node_object() { # NUMBER
    cat <<END
apiVersion: v1
kind: Node
metadata: {name: node-$1, labels: {topology.kubernetes.io/zone: zone-$(((($1 - 1) % 3) + 1)), topology.kubernetes.io/region: region}}
spec: {podCIDR: "$(first "10.244.$1.0/24" "fd00:10:244:$1::/64")", podCIDRs: [$(of_families "10.244.$1.0/24" "\"fd00:10:244:$1::/64\"")]}
END
}

start_node() { # NUMBER
    local i=$1 hierarchy
    node_network "$i"
    # cgroup v1 lets no process into a cgroup without processors.
    for hierarchy in $(hierarchies); do
        mkdir -p "$hierarchy/$control/node-$i"
        for file in cpuset.cpus cpuset.mems; do
            [ -e "$hierarchy/$control/$file" ] || continue
            cat "$hierarchy/$file" >"$hierarchy/$control/$file"
            cat "$hierarchy/$file" >"$hierarchy/$control/node-$i/$file"
        done
    done
    inside "$control-node-$i" setsid unshare --mount --uts --pid --ipc --fork --kill-child=SIGKILL --mount-proc \
        bash "$here/node.sh" "$i" "$state" "$assets" "/$control/node-$i" "$(of_families "172.30.0.1$i" "fd30::1$i")" "$dns" >>"$state/log/node-$i.log" 2>&1 </dev/null &
}

hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; else ls -d /sys/fs/cgroup/*/; fi
}

# Ends every process of a namespace: with the first process of a node, all of the node's containers.
clear_namespace() { # NAMESPACE
    local pids
    while pids=$(ip netns pids "$1") && [ -n "$pids" ]; do
        kill -KILL $pids 2>/dev/null || true
        sleep 0.1
    done
    ip netns delete "$1"
}

node_is_ready() {
    kubectl get node "node-$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' | grep -q True
}

apply_proxy() { # shunt | kube-proxy | none
    case $1 in
        none) return ;;
        kube-proxy) kubectl apply -f "$state/kube-proxy.yaml" >/dev/null ;;
        shunt)
            # Of kubeadm's kube-proxy only the configuration, which shunt reads.
            kubectl apply -f "$state/kube-proxy.yaml" -l app=kube-proxy >/dev/null
            kubectl apply -f "$rendered" >/dev/null ;;
        *) fail "there is no Service proxy $1 here; choose shunt, kube-proxy or none" ;;
    esac
    kubectl -n kube-system rollout status "daemonset/$1" --timeout=3m
}

up() { # PROXY
    check_assets
    down
    mkdir -p "$state"/{log,pid,pki,cni}
    for i in $(seq "$nodes"); do mkdir -p "$state/node-$i/lib"; done
    control_network
    say "making images"
    # In the namespace, by which `down` finds what has not ended.
    inside "$control" bash "$here/images.sh" "$assets" "${SHUNT:-$repository/target/release/shunt}" "$version" "$state/images.tar"
    say "starting the control plane"
    control_plane
    say "starting $nodes nodes"
    for i in $(seq "$nodes"); do
        node_object "$i" | kubectl apply -f - >/dev/null
        start_node "$i"
    done
    for i in $(seq "$nodes"); do until_true 240 "node-$i" node_is_ready "$i"; done
    sed -e "s/SERVER/$server/" -e "s!CLUSTER_CIDRS!$cluster_cidrs!" -e "s/ANY/$(first 0.0.0.0 ::)/" "$here/kube-proxy.yaml" >"$state/kube-proxy.yaml"
    say "starting $1"
    apply_proxy "$1"
    sed -e "s/DNS/$dns/" -e "s/API/$api/" -e "s/FAMILY/$(first IPv4 IPv6)/" "$here/web.yaml" | kubectl apply -f - >/dev/null
    kubectl rollout status deployment/web --timeout=3m
    if [ "$1" != none ]; then
        until_true 60 "a Service by its name, from a pod" \
            kubectl exec deployment/web -- curl --silent --fail --max-time 2 http://web/hostname
    fi
    kubectl get pods -A -o wide
    say "kubectl: $here/cluster.sh kubectl …"
}

down() {
    local namespace hierarchy
    for namespace in $(ip netns list | awk -v own="$control" '$1 == own || index($1, own "-node-") == 1 {print $1}'); do
        clear_namespace "$namespace"
    done
    for hierarchy in $(hierarchies); do
        # A cgroup can be removed a moment after the end of its last process.
        for _ in $(seq 50); do
            find "$hierarchy/$control" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ -d "$hierarchy/$control" ] || break
            sleep 0.1
        done
    done
    rm -rf "$state"
}

reboot_node() { # NUMBER
    clear_namespace "$control-node-$1"
    # Other nodes' mount namespaces may still refer to the old namespace.
    ip -n "$control" link delete "node-$1" 2>/dev/null || true
    start_node "$1"
}

# Ends the API server and starts it again, as an upgrade of the control plane does.
restart_api_server() {
    kill "$(cat "$state/pid/kube-apiserver")"
    until_true 60 "the end of the API server" bash -c "! kill -0 $(cat "$state/pid/kube-apiserver")"
    start_api_server
    until_true 120 "the API server" kubectl get --raw /readyz
}

check_assets() {
    [ "$(id -u)" = 0 ] || fail "needs root: kubelets and containers do not work in a user namespace"
    [ -n "$assets" ] || fail "KUBEBUILDER_ASSETS must name a folder with Kubernetes' binaries; see CONTRIBUTING.md"
    local file
    for file in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl agnhost \
        containerd containerd-shim-runc-v2 ctr cni/bridge cni/host-local cni/loopback cni/portmap; do
        [ -x "$assets/$file" ] || fail "there is no $file in $assets; CONTRIBUTING.md says where upstream publishes it"
    done
}

# Runs upstream's tests of networks and Services; the report is ginkgo's, as JSON.
e2e() { # PROXY REPORT [FOCUS]
    local skip
    skip=$(sed "/^#/d; s/^[a-z0-9,]*$families[a-z0-9,]*: //; /^[a-z0-9,]*: /d; s/ *#.*//; /^$/d" "$here/skip.txt" | paste -sd '|')
    [ -x "$assets/e2e.test" ] && [ -x "$assets/ginkgo" ] || fail "there is no e2e.test or ginkgo in $assets"
    # Two at a time: more of them meet their own timeouts on a small machine.
    inside "$control" "$assets/ginkgo" run --procs=2 --timeout=4h --silence-skips --no-color --json-report="$(basename "$2")" \
        --output-dir="$(dirname "$2")" --focus="${3:-\\[sig-network\\]}" --skip="$skip" "$assets/e2e.test" -- \
        --provider=skeleton --kubeconfig="$state/admin.conf" --kubectl-path="$assets/kubectl" --node-os-distro=debian \
        --num-nodes="$nodes" --disable-log-dump 2>&1 | tee "$state/log/e2e-$1.log"
}

case ${1:-} in
    up) up "${2:-shunt}" ;;
    down) down ;;
    reboot) reboot_node "$2" ;;
    e2e) shift; e2e "$@" ;;
    guide) guide ;;
    kubectl) shift; kubectl "$@" ;;
    *) fail "usage: cluster.sh up [PROXY] | e2e PROXY REPORT [FOCUS] | guide | reboot NUMBER | kubectl ARGUMENT… | down" ;;
esac
