//! The machine itself as a node: its first network namespace, and modules that are not loaded yet.

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shunt_testbed::{
    Agent, CLUSTER_CIDR, EndpointSlice, Host, ManifestDir, Netns, Node, Protocol, Service,
    Topology, patience,
};

use crate::Test;

/// What is done on a machine that has just been booted.
pub(crate) const TESTS: [Test; 2] = [
    ("node::a_cold_start_loads_the_modules_and_writes_the_sysctls", cold_start),
    ("node::tables_have_owners_as_docs_kernels_md_says", owners),
];

/// What is done on one that was booted with `ipv6.disable=1`.
pub(crate) const TESTS_WITHOUT_IPV6: [Test; 2] = [
    ("node::init_only_loads_connection_tracking_and_writes_the_sysctls", init_only),
    ("node::without_ipv6_the_agent_works_for_ipv4_and_says_so_once", without_ipv6),
];

/// What is done on one that was booted as it is.
pub(crate) const TESTS_AFTER_BOOT: [Test; 1] =
    [("node::after_a_boot_connection_tracking_is_as_with_kube_proxy", after_boot)];

/// Modules that everything needs that we program.
const MODULES: [&str; 4] = ["nf_tables", "nf_conntrack", "nf_nat", "nft_masq"];

const CONFIG: &str = "detectLocalMode: ClusterCIDR\n\
    clusterCIDR: 10.244.0.0/16,fd00:244::/48\n\
    conntrack: {maxPerCore: 1000, min: 600000, tcpEstablishedTimeout: 4321s, tcpBeLiberal: true, \
    udpTimeout: 17s}\n";

/// Where what [`CONFIG`] asks for must be found afterwards. The kernel rounds the size of the hash
/// table, a quarter of that of the whole, to a multiple of 512.
const SYSCTLS: [(&str, &str); 5] = [
    ("/proc/sys/net/netfilter/nf_conntrack_max", "600000"),
    ("/sys/module/nf_conntrack/parameters/hashsize", "150016"),
    ("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "4321"),
    ("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1"),
    ("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "17"),
];

const NODE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 1);
const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 11);
const POD_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 0x11);
const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const CLUSTER_IP_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10);
const TARGET: u16 = 8080;
const GREETING: &str = "pod-1";

/// The agent's binary, where init says it is.
pub(crate) fn agent_binary() -> Result<String> {
    env::var("SHUNT").context("SHUNT, the path of the agent, is not set")
}

fn cold_start() -> Result<()> {
    let loaded = loaded(&MODULES)?;
    ensure!(loaded.is_empty(), "{loaded:?} were loaded before the agent started");
    let world = World::new(true)?;
    let agent = world.agent()?;
    let missing: Vec<&str> = {
        let loaded = self::loaded(&MODULES)?;
        MODULES.into_iter().filter(|module| !loaded.contains(module)).collect()
    };
    ensure!(missing.is_empty(), "{missing:?} are not loaded\n{}", agent.log());
    assert_sysctls(&SYSCTLS, &agent.log())?;
    for address in [
        SocketAddr::from((CLUSTER_IP, 80)),
        (CLUSTER_IP_V6, 80).into(),
        (NODE, 30080).into(),
        (NODE_V6, 30080).into(),
    ] {
        world.assert_answers(address, &agent)?;
    }
    agent.stop()?;
    // A stopped agent leaves its rules, and a new one finds nothing to do about them.
    world.assert_answers((CLUSTER_IP, 80).into(), &world.agent()?)
}

/// The kernel lets nobody else modify the agent's tables from 6.9 on. Tables of `shunt trace` have an owner
/// from 5.12 on.
fn owners() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next(), numbers.next());
    let at_least = |least: (u32, u32)| (major, minor) >= (Some(least.0), Some(least.1));
    let (lab, manifests) = (Topology::new()?, ManifestDir::new()?);
    let node = &lab.node;
    manifests.write("node.yaml", Node::of(node))?;
    let agent = Agent::builder(agent_binary()?, node).manifests(&manifests);
    let _agent = agent.config(CLUSTER_CIDR)?.start()?;
    let with_owner = node.nft("add table ip t { flags owner; }\n");
    ensure!(with_owner.is_ok() == at_least((5, 12)), "an owner on {release}: {with_owner:?}");
    let deleted = node.nft("delete table ip shunt\n");
    ensure!(deleted.is_err() == at_least((6, 9)), "an owner that stays on {release}: {deleted:?}");
    Ok(())
}

/// What kubeadm writes, and where it must be found on a machine of one processor.
const DEFAULTS: &str = "conntrack: {maxPerCore: null, min: null, tcpEstablishedTimeout: null, \
    tcpCloseWaitTimeout: null, udpTimeout: 0s}\n";
const DEFAULT_SYSCTLS: [(&str, &str); 6] = [
    ("/proc/sys/net/netfilter/nf_conntrack_max", "131072"),
    ("/proc/sys/net/netfilter/nf_conntrack_buckets", "32768"),
    ("/sys/module/nf_conntrack/parameters/hashsize", "32768"),
    ("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "86400"),
    ("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
    // The kernel's own.
    ("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "30"),
];

/// The agent in a container: one capability, /proc/sys read-only, and the node's /proc/sys/net
/// mounted. This changes the machine for good.
fn after_boot() -> Result<()> {
    let loaded = loaded(&["nf_conntrack"])?;
    ensure!(loaded.is_empty(), "another process has loaded {loaded:?} before the agent");
    let world = World::new(true)?;
    let mounted = "/run/net-sysctls";
    let mounts = format!(
        "mkdir {mounted} && mount --bind /proc/sys/net {mounted} && mount --bind /proc/sys /proc/sys && \
         mount -o remount,bind,ro /proc/sys"
    );
    ensure!(Command::new("sh").args(["-c", &mounts]).status()?.success(), "cannot mount");

    let output = Command::new("setpriv")
        .args(["--inh-caps=-all", "--bounding-set=-all,+net_admin", "--no-new-privs"])
        .arg(agent_binary()?)
        .args(["run", "--once", "--config", &config()?, "--manifests"])
        .arg(world.manifests.path())
        .arg("--net-sysctls")
        .arg(mounted)
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !log.contains("WARN"), "{log}");
    assert_sysctls(&DEFAULT_SYSCTLS, &log)
}

/// A file with [`DEFAULTS`].
fn config() -> Result<String> {
    let config = "/run/config.yaml";
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    fs::write(config, format!("{head}{DEFAULTS}"))?;
    Ok(config.to_owned())
}

/// An init container prepares a node on which nothing has used connection tracking yet.
fn init_only() -> Result<()> {
    let loaded = loaded(&["nf_conntrack"])?;
    ensure!(loaded.is_empty(), "another process has loaded {loaded:?} before the agent");
    let output = Command::new(agent_binary()?)
        .args(["run", "--init-only", "--config", &config()?])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !log.contains("WARN"), "{log}");
    assert_sysctls(&DEFAULT_SYSCTLS, &log)
}

fn assert_sysctls(sysctls: &[(&str, &str)], log: &str) -> Result<()> {
    for (file, wanted) in sysctls {
        let value = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        ensure!(value.trim() == *wanted, "{file} is {value}, not {wanted}\n{log}");
    }
    Ok(())
}

fn without_ipv6() -> Result<()> {
    ensure!(
        !fs::exists("/proc/net/if_inet6")?,
        "the machine was to be booted without IPv6, and has it"
    );
    let world = World::new(false)?;
    let agent = world.agent()?;
    for address in [SocketAddr::from((CLUSTER_IP, 80)), (NODE, 30080).into()] {
        world.assert_answers(address, &agent)?;
    }
    let log = agent.log();
    let about: Vec<&str> = log.lines().filter(|line| line.contains("IPv6")).collect();
    ensure!(about.len() == 1, "the agent has {} lines about IPv6, not one:\n{log}", about.len());
    let wrong = log.lines().find(|line| line.contains("WARN") || line.contains("ERROR"));
    ensure!(wrong.is_none(), "the agent complains:\n{log}");
    Ok(())
}

/// Those of the modules that are loaded.
fn loaded(modules: &[&'static str]) -> Result<Vec<&'static str>> {
    let list = fs::read_to_string("/proc/modules").context("cannot list the modules")?;
    let is_there = |module: &&str| list.lines().any(|line| line.split(' ').next() == Some(module));
    Ok(modules.iter().copied().filter(is_there).collect())
}

/// The machine with a pod that serves, and manifests.
struct World {
    node: Host,
    _pod: Netns,
    manifests: ManifestDir,
}

impl World {
    fn new(with_ipv6: bool) -> Result<Self> {
        let v6 = |address: Ipv6Addr| if with_ipv6 { vec![address] } else { Vec::new() };
        let node = Host {
            name: "vm".into(),
            ipv4: vec![NODE],
            ipv6: v6(NODE_V6),
            node: Some("vm".into()),
            ns: Netns::own()?,
        };
        let pod = Host {
            name: GREETING.into(),
            ipv4: vec![POD],
            ipv6: v6(POD_V6),
            node: Some("vm".into()),
            ns: Netns::new()?,
        };
        node.ns.ip(&format!(
            "link set lo up\n\
             link add veth-pod type veth peer name eth0 netns {}\n\
             link set veth-pod up\n{}\
             route add {CLUSTER_IP}/32 dev veth-pod\n",
            pod.ns.path().display(),
            addresses("veth-pod", &node)
        ))?;
        pod.ns.ip(&format!("link set lo up\nlink set eth0 up\n{}", addresses("eth0", &pod)))?;
        pod.ns.ip(&format!("route add default via {NODE}\n"))?;
        if with_ipv6 {
            // Before a rule sends it to the pod, a packet to a ClusterIP needs some route.
            node.ns.ip(&format!("route add {CLUSTER_IP_V6}/128 dev veth-pod\n"))?;
            pod.ns.ip(&format!("route add default via {NODE_V6}\n"))?;
        }
        serve(&pod.ns, pod.ips())?;

        let manifests = ManifestDir::new()?;
        let mut ips = vec![CLUSTER_IP.to_string()];
        let mut slices = port(EndpointSlice::v4("web")).hosts(&[&pod]).to_string();
        if with_ipv6 {
            ips.push(CLUSTER_IP_V6.to_string());
            slices += &port(EndpointSlice::v6("web")).hosts(&[&pod]).to_string();
        }
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let service = Service::new("web").cluster_ips(&ips);
        let service = service.node_port("http", Protocol::Tcp, 80, 30080);
        manifests.write("web.yaml", format!("{}{service}{slices}", Node::of(&node)))?;
        Ok(Self { node, _pod: pod.ns, manifests })
    }

    /// The agent, ready.
    fn agent(&self) -> Result<Agent> {
        let builder = Agent::builder(agent_binary()?, &self.node);
        builder.manifests(&self.manifests).config(CONFIG)?.start()
    }

    fn assert_answers(&self, address: SocketAddr, agent: &Agent) -> Result<()> {
        let explain = || format!("{address} is not answered by the pod\n{}", agent.log());
        let patience = patience(Duration::from_secs(10));
        let mut stream = TcpStream::connect_timeout(&address, patience).with_context(explain)?;
        stream.set_read_timeout(Some(patience))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(explain)?;
        ensure!(answer == GREETING, "{address} answers {answer:?}");
        Ok(())
    }
}

fn port(slice: EndpointSlice) -> EndpointSlice {
    slice.port("http", Protocol::Tcp, TARGET)
}

/// Commands that give an interface the addresses of a host.
fn addresses(interface: &str, host: &Host) -> String {
    let command = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => format!("addr add {ip}/24 dev {interface}\n"),
        IpAddr::V6(ip) => format!("addr add {ip}/64 dev {interface} nodad\n"),
    };
    host.ips().map(command).collect()
}

/// Greets clients of these addresses. The testbed's own server needs IPv6.
fn serve(ns: &Netns, ips: impl Iterator<Item = IpAddr>) -> Result<()> {
    for ip in ips {
        let listener = ns.run(|| Ok(TcpListener::bind((ip, TARGET))?))?;
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(GREETING.as_bytes());
            }
        });
    }
    Ok(())
}
