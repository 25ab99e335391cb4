//! A small cluster: two nodes, three pods and a client outside, on one Ethernet segment.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use anyhow::{Context, Result};

use crate::echo::Echo;
use crate::expect::Origin;
use crate::netns::Netns;

/// A machine or pod: a namespace with a name and addresses.
#[derive(Clone, Debug)]
pub struct Host {
    /// What echo servers on it call themselves.
    pub name: String,
    /// Its IPv4 addresses, the primary one first.
    pub ipv4: Vec<Ipv4Addr>,
    /// Its IPv6 addresses, the primary one first.
    pub ipv6: Vec<Ipv6Addr>,
    /// The node it is, or the node the pod runs on, as in `nodeName` of an EndpointSlice. Hosts
    /// outside the cluster have none.
    pub node: Option<String>,
    /// Its namespace, also reachable by dereference: `host.run(…)`.
    pub ns: Netns,
}

impl Host {
    fn new(name: &str, node: Option<&str>, ipv4: &[[u8; 4]], ipv6: &[&str]) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            ipv4: ipv4.iter().copied().map(Ipv4Addr::from).collect(),
            ipv6: ipv6.iter().map(|ip| ip.parse()).collect::<Result<_, _>>()?,
            node: node.map(str::to_owned),
            ns: Netns::named(name)?,
        })
    }

    /// All its addresses.
    pub fn ips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v4 = self.ipv4.iter().copied().map(IpAddr::from);
        v4.chain(self.ipv6.iter().copied().map(IpAddr::from))
    }

    /// Its primary address of the family of `other`.
    pub fn ip_like(&self, other: IpAddr) -> Option<IpAddr> {
        self.ips().find(|ip| ip.is_ipv4() == other.is_ipv4())
    }
}

impl Deref for Host {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.ns
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A configuration under which the agent knows the pods of the [`Topology`] by their addresses, and node
/// ports are on the primary addresses of the node.
pub const CLUSTER_CIDR: &str =
    "mode: nftables\ndetectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

/// Addresses of Services that the client sends to the node; see [`Topology`].
const SERVICE_NETWORKS: [&str; 6] = [
    "10.96.0.0/12",
    "203.0.113.0/24",
    "198.51.100.0/24",
    "fd00:96::/108",
    "2001:db8:113::/64",
    "2001:db8:51::/64",
];

/// The testbed every packet test starts from.
///
/// ```text
///                       switch  192.0.2.1, 2001:db8:2::1
///        ┌─────────────────┬───────────────────┐                    192.0.2.0/24
///       node              node2             client                 2001:db8:2::/64
///   .10 and .11            .20               .100
///   ┌────┴────┐             │
/// pod-1     pod-2         pod-3
/// 10.244.0.11  .12        10.244.1.21
/// fd00:244::11  ::12      fd00:244:1::21
/// ```
///
/// - Pods hang on routed point-to-point veths, as with Calico: no bridge of their own, no address on
///   the node's end (`veth-pod-1` …). Nodes and pods reach each other's pod networks,
///   `10.244.0.0/16` and `fd00:244::/48`.
/// - `client` stands outside of the cluster. It sends ClusterIPs (`10.96.0.0/12`, `fd00:96::/108`),
///   load-balancer VIPs (`203.0.113.0/24`, `2001:db8:113::/64`) and external IPs
///   (`198.51.100.0/24`, `2001:db8:51::/64`) to `node`, and has no route to pods. `node2` answers it
///   without a detour through `node`, so what `node` sends to `pod-3` without masquerade fails, as
///   in life.
/// - The nodes' default gateway, `switch`, answers whatever reaches it with "administratively
///   prohibited": a packet to a Service that no rule of the node touched is told apart from one
///   that a rule dropped ([`Probe::unhandled`](crate::Probe::unhandled)).
/// - No duplicate address detection, no router solicitation, no limit on ICMP errors: what a probe
///   sees does not depend on what was sent before.
pub struct Topology {
    /// The Ethernet segment, a bridge, and the nodes' default gateway.
    pub switch: Netns,
    /// The node under test, `node-1`; its interface to the segment is `eth0`.
    pub node: Host,
    /// Another node, `node-2`; nothing but routing happens there.
    pub node2: Host,
    /// The client outside of the cluster.
    pub client: Host,
    /// A pod on `node`.
    pub pod1: Host,
    /// Another pod on `node`.
    pub pod2: Host,
    /// A pod on `node2`.
    pub pod3: Host,
}

impl Topology {
    /// Builds it; this takes some tens of milliseconds.
    pub fn new() -> Result<Self> {
        let lab = Self {
            switch: Netns::named("switch")?,
            node: Host::new(
                "node-1",
                Some("node-1"),
                &[[192, 0, 2, 10], [192, 0, 2, 11]],
                &["2001:db8:2::10", "2001:db8:2::11"],
            )?,
            node2: Host::new("node-2", Some("node-2"), &[[192, 0, 2, 20]], &["2001:db8:2::20"])?,
            client: Host::new("client", None, &[[192, 0, 2, 100]], &["2001:db8:2::100"])?,
            pod1: Host::new("pod-1", Some("node-1"), &[[10, 244, 0, 11]], &["fd00:244::11"])?,
            pod2: Host::new("pod-2", Some("node-1"), &[[10, 244, 0, 12]], &["fd00:244::12"])?,
            pod3: Host::new("pod-3", Some("node-2"), &[[10, 244, 1, 21]], &["fd00:244:1::21"])?,
        };
        lab.configure().context("cannot build the topology")?;
        Ok(lab)
    }

    fn configure(&self) -> Result<()> {
        // Interfaces take their settings from `default` when they are made or moved here.
        quieten(&self.switch)?;
        for host in self.hosts() {
            quieten(host)?;
        }
        for router in [&self.switch, &self.node, &self.node2] {
            forward(router)?;
        }
        build_switch(&self.switch, &[&self.node, &self.node2, &self.client])?;
        // One batch for each namespace: on an emulated processor, programs take long to start.
        for (host, commands, pods) in [
            (
                &self.node,
                node_commands(&self.node, &self.node2, "10.244.1.0/24", "fd00:244:1::/64"),
                &[&self.pod1, &self.pod2][..],
            ),
            (
                &self.node2,
                node_commands(&self.node2, &self.node, "10.244.0.0/24", "fd00:244::/64"),
                &[&self.pod3],
            ),
            (&self.client, client_commands(&self.client, &self.node), &[]),
        ] {
            let (node_sides, pod_sides): (String, Vec<_>) =
                pods.iter().map(|pod| attachment(pod)).unzip();
            host.ip(&(commands + &node_sides))?;
            pods.iter().zip(pod_sides).try_for_each(|(pod, commands)| pod.ip(&commands))?;
        }
        Ok(())
    }

    /// Its hosts, the pods last.
    pub fn hosts(&self) -> [&Host; 6] {
        [&self.client, &self.node, &self.node2, &self.pod1, &self.pod2, &self.pod3]
    }

    /// The pods of both nodes.
    pub fn pods(&self) -> [&Host; 3] {
        [&self.pod1, &self.pod2, &self.pod3]
    }

    /// Starts a server in each pod, on the same port.
    pub fn serve(&self, port: u16) -> Result<Vec<Echo>> {
        self.pods().map(|pod| Echo::on(pod, port)).into_iter().collect()
    }

    /// Adds a pod to a node of this topology.
    pub fn add_pod(&self, node: &Host, name: &str, ipv4: [u8; 4], ipv6: &str) -> Result<Host> {
        let pod = Host::new(name, node.node.as_deref(), &[ipv4], &[ipv6])?;
        quieten(&pod)?;
        // Connected to its node by a veth of its own.
        let (node_side, pod_side) = attachment(&pod);
        node.ip(&node_side)?;
        pod.ip(&pod_side)?;
        Ok(pod)
    }

    /// Moves both pods of [`node`](Self::node) to one bridge and into one subnet, so that they send
    /// to each other without a router. Packets between them nevertheless pass the netfilter hooks of the
    /// node, as kubelet and CNI plugins arrange it.
    ///
    /// # Errors
    /// Also where the kernel lacks `br_netfilter`.
    pub fn put_pods_on_bridge(&self) -> Result<()> {
        let mut commands = String::from(
            "link add cbr0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set cbr0 up\n",
        );
        for pod in [&self.pod1, &self.pod2] {
            let veth = format!("veth-{pod}");
            commands += &format!("link set {veth} master cbr0\n");
            for ip in pod.ips() {
                let prefix = if ip.is_ipv4() { 32 } else { 128 };
                let [_, mac] = link_addresses(pod);
                commands += &format!(
                    "route del {ip}/{prefix} dev {veth}\n\
                     route add {ip}/{prefix} dev cbr0\n\
                     neigh add {ip} lladdr {mac} dev cbr0 nud permanent\n"
                );
            }
            pod.ip("route add 10.244.0.0/24 dev eth0\nroute add fd00:244::/64 dev eth0\n")?;
        }
        self.node.ip(&commands)?;
        self.node
            .sysctl(&[
                ("net/bridge/bridge-nf-call-iptables", "1"),
                ("net/bridge/bridge-nf-call-ip6tables", "1"),
            ])
            .context("this needs the kernel module br_netfilter (as root: modprobe br_netfilter)")
    }

    /// Lets another host send to Services by way of the node, as the client does.
    pub fn route_services(&self, host: &Host) -> Result<()> {
        host.ip(&service_routes(&self.node))
    }

    /// The start of an expectation about packets from `host`:
    /// `lab.from(&lab.client).tcp("10.96.0.10:80").reaches(&["pod-1"])`.
    pub fn from<'a>(&'a self, host: &'a Host) -> Origin<'a> {
        Origin::new(self, host)
    }
}

/// Turns off everything that sends packets or delays them unasked.
fn quieten(ns: &Netns) -> Result<()> {
    ns.sysctl(&[
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        // Packets may leave by the interface they came in by: a Service's client and endpoint can
        // be neighbours.
        ("net/ipv4/conf/all/send_redirects", "0"),
        ("net/ipv4/conf/default/send_redirects", "0"),
        ("net/ipv4/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/all/accept_redirects", "0"),
        ("net/ipv6/conf/default/accept_redirects", "0"),
        // No router solicitation, no duplicate address detection, and addresses only by command:
        // the kernel's own would appear some time later.
        ("net/ipv6/conf/all/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/addr_gen_mode", "1"),
        // Refusals are ICMP errors: a limit would turn the later ones into silence.
        ("net/ipv4/icmp_ratemask", "0"),
        // These are masks of the types that are limited; type 0 of ICMPv6 does not exist.
        ("net/ipv6/icmp/ratemask", "0"),
    ])
}

fn forward(ns: &Netns) -> Result<()> {
    ns.sysctl(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")])
}

fn build_switch(switch: &Netns, ports: &[&Host]) -> Result<()> {
    let mut commands = String::from(
        "link set lo up\n\
         link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         addr add 192.0.2.1/24 dev br0\n\
         addr add 2001:db8:2::1/64 dev br0 nodad\n\
         addr add fe80::1/64 dev br0 nodad\n\
         link set br0 up\n\
         route add 0.0.0.0/0 dev br0\n\
         route add ::/0 dev br0\n\
         route add 10.244.0.0/24 via 192.0.2.10\n\
         route add fd00:244::/64 via 2001:db8:2::10\n\
         route add 10.244.1.0/24 via 192.0.2.20\n\
         route add fd00:244:1::/64 via 2001:db8:2::20\n",
    );
    for host in ports {
        let (port, ns) = (format!("to-{host}"), host.path());
        commands += &format!(
            "link add {port} type veth peer name eth0 netns {}\n\
             link set {port} master br0 up\n",
            ns.display(),
        );
    }
    switch.ip(&commands)?;
    // Only what is routed shall meet the rule below, not what is switched.
    let _ = switch.sysctl(&[
        ("net/bridge/bridge-nf-call-iptables", "0"),
        ("net/bridge/bridge-nf-call-ip6tables", "0"),
    ]);
    // A rule, because `ip route add prohibit` answers only a few packets a second.
    switch.nft(
        "table inet gateway {
             chain forward {
                 type filter hook forward priority 0;
                 reject with icmpx admin-prohibited
             }
         }",
    )
}

/// Commands for the interface to the switch. Without a link-local address the kernel could not ask
/// for neighbours on behalf of packets that it forwards.
fn join_segment(host: &Host) -> String {
    let [.., last] = host.ipv6[0].segments();
    format!("link set lo up\nlink set eth0 up\naddr add fe80::{last:x}/64 dev eth0 nodad\n")
}

/// Commands for a node whose fellow has the pod networks given last.
fn node_commands(node: &Host, fellow: &Host, pods_v4: &str, pods_v6: &str) -> String {
    let mut commands = join_segment(node);
    for ip in &node.ipv4 {
        commands += &format!("addr add {ip}/24 dev eth0\n");
    }
    // As a source the kernel prefers the IPv6 address that was added last.
    for ip in node.ipv6.iter().rev() {
        commands += &format!("addr add {ip}/64 dev eth0 nodad\n");
    }
    commands += &format!(
        "route add default via 192.0.2.1\n\
         route add default via 2001:db8:2::1\n\
         route add {pods_v4} via {}\n\
         route add {pods_v6} via {}\n",
        fellow.ipv4[0], fellow.ipv6[0],
    );
    commands
}

fn client_commands(client: &Host, node: &Host) -> String {
    let mut commands = join_segment(client);
    commands += &format!(
        "addr add {}/24 dev eth0\n\
         addr add {}/64 dev eth0 nodad\n",
        client.ipv4[0], client.ipv6[0],
    );
    commands + &service_routes(node)
}

/// Commands for a host that sends to Services by way of the node.
fn service_routes(node: &Host) -> String {
    let route = |network: &str| {
        let gateway: &dyn fmt::Display =
            if network.contains(':') { &node.ipv6[0] } else { &node.ipv4[0] };
        format!("route add {network} via {gateway}\n")
    };
    SERVICE_NETWORKS.into_iter().map(route).collect()
}

/// Commands for both ends of a pod's veth, the node's first. Fixed link-layer addresses and
/// neighbour entries on both sides spare proxy ARP, its delays, and gateway addresses on the node.
fn attachment(pod: &Host) -> (String, String) {
    let (ipv4, ipv6) = (pod.ipv4[0], pod.ipv6[0]);
    let [node_mac, pod_mac] = link_addresses(pod);
    let veth = format!("veth-{pod}");
    let node_side = format!(
        "link add {veth} address {node_mac} type veth peer name eth0 address {pod_mac} netns {}\n\
         link set {veth} up\n\
         route add {ipv4}/32 dev {veth}\n\
         route add {ipv6}/128 dev {veth}\n\
         neigh add {ipv4} lladdr {pod_mac} dev {veth} nud permanent\n\
         neigh add {ipv6} lladdr {pod_mac} dev {veth} nud permanent\n",
        pod.path().display(),
    );
    let pod_side = format!(
        "link set lo up\n\
         link set eth0 up\n\
         addr add {ipv4}/32 dev eth0\n\
         addr add {ipv6}/128 dev eth0 nodad\n\
         neigh add 169.254.1.1 lladdr {node_mac} dev eth0 nud permanent\n\
         neigh add fe80::1 lladdr {node_mac} dev eth0 nud permanent\n\
         route add default via 169.254.1.1 dev eth0 onlink\n\
         route add default via fe80::1 dev eth0\n",
    );
    (node_side, pod_side)
}

/// Returns the link-layer addresses of both ends of a pod's veth, the node's first.
fn link_addresses(pod: &Host) -> [String; 2] {
    let [a, b, c, d] = pod.ipv4[0].octets();
    [1, 2].map(|side: u8| format!("02:{side:02x}:{a:02x}:{b:02x}:{c:02x}:{d:02x}"))
}
