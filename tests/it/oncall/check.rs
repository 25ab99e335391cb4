//! `shunt check`: each situation is made for real, and one line has to tell it.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use shunt_testbed::{CheckLines, HEALTH_PORT, ManifestDir, Netns, Node, TempDir, Topology};

use crate::world::{CLUSTER_CIDR, SHUNT, World, run_shunt};

/// The names of all lines, which are an interface.
const NAMES: [&str; 27] = [
    "configuration",
    "capabilities",
    "user-namespace",
    "network-namespace",
    "nf-tables",
    "kernel-features",
    "table-ownership",
    "connection-tracking",
    "ipv6",
    "kube-proxy",
    "other-agent",
    "service-implementation",
    "forward-policy",
    "ip-forwarding",
    "rp-filter",
    "bridge-netfilter",
    "healthz-port",
    "metrics-port",
    "conntrack-sysctls",
    "conntrack-table",
    "api-server",
    "api-permissions",
    "api-address",
    "node",
    "node-ports",
    "node-port-listeners",
    "local-traffic",
];

/// Asserts that the lines with one of these results are these.
#[track_caller]
fn assert_with(lines: &[Value], results: &[&str], names: &[&str]) {
    let lines = lines.iter();
    let lines: Vec<&Value> =
        lines.filter(|it| results.iter().any(|result| it["result"] == *result)).collect();
    let found: Vec<&str> = lines.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(found, names, "{lines:#?}");
}

/// Runs `shunt check` in a namespace.
fn check(ns: &Netns, arguments: &[&str]) -> Result<CheckLines> {
    let arguments = [&["check", "--output=json"], arguments].concat();
    CheckLines::read(&run_shunt(ns, &arguments)?)
}

/// A configuration, with sysctls that fit: those of the machine do not matter here.
struct Setting {
    scratch: TempDir,
    manifests: ManifestDir,
}

impl Setting {
    fn new(lab: &Topology) -> Result<Setting> {
        let setting = Setting { scratch: TempDir::new()?, manifests: ManifestDir::new()? };
        setting.manifests.write("node.yaml", Node::of(&lab.node))?;
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let text = format!("{head}conntrack: {{maxPerCore: 0}}\n{CLUSTER_CIDR}");
        fs::write(setting.scratch.path().join("config"), text)?;
        for (name, value) in [
            ("max", "262144"),
            ("buckets", "65536"),
            ("count", "26214"),
            ("tcp_timeout_established", "86400"),
            ("tcp_timeout_close_wait", "3600"),
        ] {
            setting.sysctl(name, value)?;
        }
        Ok(setting)
    }

    fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let folder = self.scratch.path().join("netfilter");
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(format!("nf_conntrack_{name}")), value)?)
    }

    fn check(&self, lab: &Topology) -> Result<CheckLines> {
        let path = |path: &Path| path.display().to_string();
        let arguments = [
            format!("--config={}", path(&self.scratch.path().join("config"))),
            format!("--manifests={}", path(self.manifests.as_ref())),
            format!("--net-sysctls={}", path(self.scratch.path())),
            format!("--hostname-override={}", lab.node.name),
        ];
        check(&lab.node, &arguments.each_ref().map(String::as_str))
    }
}

/// The topology, with [`CLUSTER_CIDR`] as configuration.
fn node() -> Result<(Topology, Setting)> {
    let lab = Topology::new()?;
    let setting = Setting::new(&lab)?;
    Ok((lab, setting))
}

#[test]
fn good_node_has_nothing_to_do_and_stays_as_it_is() -> Result<()> {
    let (lab, setting) = node()?;
    lab.node.nft("add table ip other")?;
    let state = || -> Result<_> {
        let sysctl = setting.scratch.path().join("netfilter/nf_conntrack_max");
        // Names only: the carrier of a new interface may still be to come.
        let links = lab.node.run(|| Ok(nfnetlink::route::links()?))?;
        let links: Vec<String> = links.into_iter().map(|link| link.name).collect();
        Ok((lab.node.output("nft", &["list", "ruleset"])?, links, fs::read_to_string(sysctl)?))
    };
    let before = state()?;
    let lines = setting.check(&lab)?;
    let names: Vec<&str> = lines.0.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(names, NAMES);
    // The tests may run in a user namespace.
    let others = lines.0.iter().filter(|line| line["name"] != "user-namespace");
    assert_with(&others.cloned().collect::<Vec<_>>(), &["FAIL", "WARN"], &[]);
    let skipped = ["api-server", "api-permissions", "api-address", "node"];
    assert_with(&lines.0, &["SKIP"], &skipped);
    lines.has("kernel-features", "OK", &["numgen, fib, ct"]);
    lines.has("conntrack-table", "OK", &["26214 of 262144 entries (9 %)"]);
    lines.has("node-ports", "OK", &["192.0.2.10, 2001:db8:2::10"]);
    for line in &lines.0 {
        let fields: Vec<&String> = line.as_object().context("no object")?.keys().collect();
        assert_eq!(fields, ["name", "remedy", "result", "text"]);
    }
    assert_eq!(state()?, before);
    Ok(())
}

#[test]
fn documentation_has_every_line_in_order() {
    let rows = include_str!("../../../docs/check.md").lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("- `")?.split_once("`: ")?;
        Some(name)
    });
    assert_eq!(rows.collect::<Vec<_>>(), NAMES);
}

#[test]
fn missing_capability_fails() -> Result<()> {
    let ns = Netns::new()?;
    let output = ns
        .command("setpriv")
        .args(["--bounding-set=-net_admin", "--inh-caps=-all", "--no-new-privs"])
        .args([SHUNT, "check", "--output=json"])
        .output()?;
    let lines = CheckLines::read(&output)?;
    assert_with(&lines.0, &["FAIL"], &["capabilities"]);
    lines.has("capabilities", "FAIL", &["CAP_NET_ADMIN is missing"]);
    lines.has("kernel-features", "SKIP", &["CAP_NET_ADMIN"]);

    // As the container of the chart has it.
    let output = ns
        .command("setpriv")
        .args(["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"])
        .args([SHUNT, "check", "--output=json"])
        .output()?;
    let lines = CheckLines::read(&output)?;
    lines.has("capabilities", "OK", &["shunt needs no other"]);
    lines.has("kernel-features", "OK", &["accepts all rules for IPv4 and IPv6:"]);
    Ok(())
}

#[test]
fn namespace_of_a_pod_is_told_from_that_of_a_node() -> Result<()> {
    let lab = Topology::new()?;
    check(&lab.pod1, &[])?.has("network-namespace", "WARN", &["looks like a pod's"]);
    check(&lab.node, &[])?.has("network-namespace", "OK", &["not the initial one"]);
    Ok(())
}

/// Children inherit the socket, such as the workers of a server.
#[test]
fn port_is_named_by_the_eldest_process_that_has_it() -> Result<()> {
    let ns = Netns::new()?;
    ns.ip("link set lo up")?;
    let taken = ns.run(|| Ok(TcpListener::bind(("127.0.0.1", HEALTH_PORT))?))?;
    let heir = ns
        .command("sh")
        .args(["-c", "read -r _"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::os::fd::OwnedFd::from(taken.try_clone()?))
        .spawn();
    let mut heir = heir?;
    let lines = check(&ns, &[])?;
    drop(heir.stdin.take());
    heir.wait()?;
    lines.has("healthz-port", "FAIL", &[&format!("(process {})", std::process::id())]);
    // Another address is free.
    let other = check(&ns, &["--healthz-bind-address=127.0.0.2:10256"])?;
    other.has("healthz-port", "OK", &["127.0.0.2:10256 is free"]);
    Ok(())
}

/// Any user can give a process the name of another program.
#[test]
fn name_of_a_process_does_not_make_it_an_agent_or_kube_proxy() -> Result<()> {
    let world = World::empty()?;
    let node = &world.lab.node;
    for name in ["shunt", "kube-proxy"] {
        let taken = node.run(|| Ok(TcpListener::bind(("127.0.0.9", HEALTH_PORT))?))?;
        let holder = node.holder(name, taken)?;
        let process = format!("{name} (process {})", holder.id());
        check(node, &[])?.has("healthz-port", "FAIL", &[&process]);
        // Nor beside an agent, which cannot listen there.
        let agent = world.plain_agent().spawn()?;
        agent.wait_for_log(&["for /healthz and /livez", "10256"])?;
        let lines = check(node, &[])?;
        lines.has("other-agent", "WARN", &[&format!("(process {})", agent.pid())]);
        lines.has("healthz-port", "FAIL", &[&process]);
        agent.stop()?;
    }
    node.nft("add table ip kube-proxy")?;
    let taken = node.run(|| Ok(TcpListener::bind(("0.0.0.0", HEALTH_PORT))?))?;
    let _kube_proxy = node.holder("kube-proxy", taken)?;
    check(node, &[])?.has("healthz-port", "WARN", &["kube-proxy (process "]);
    Ok(())
}

#[test]
fn table_of_connection_tracking_is_compared_with_its_limit() -> Result<()> {
    let (lab, setting) = node()?;
    setting.sysctl("count", "220000")?;
    setting.check(&lab)?.has("conntrack-table", "WARN", &["220000 of 262144 entries (83 %)"]);
    setting.sysctl("count", "1")?;
    setting.sysctl("max", "65536")?;
    let below = "kube-proxy's defaults would raise the limit to ";
    setting.check(&lab)?.has("conntrack-table", "WARN", &[below]);
    setting.sysctl("tcp_timeout_close_wait", "60")?;
    let set = "shunt will set net.netfilter.nf_conntrack_tcp_timeout_close_wait = 3600 (now 60)";
    setting.check(&lab)?.has("conntrack-sysctls", "OK", &[set]);
    fs::remove_file(setting.scratch.path().join("netfilter/nf_conntrack_tcp_timeout_established"))?;
    let missing = "tcp_timeout_established = 86400 (now unknown): No such file";
    setting.check(&lab)?.has("conntrack-sysctls", "WARN", &[missing]);
    Ok(())
}
