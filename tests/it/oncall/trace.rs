//! `shunt trace`: what becomes of real packets, and that its table goes.

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nfnetlink::Family;
use nfnetlink::nft::{Kernel as _, Socket};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shunt_testbed::{Echo, Netns, Protocol, patience};

use crate::world::{
    SHUNT, World, cluster_ip_service, http_service, http_slices, manifest, run_shunt,
};

/// The name of the tables of the command.
const TABLE: &str = "shunt-trace";

/// Returns true if a table of the command is in a namespace.
fn has_table(netns: &Netns) -> Result<bool> {
    netns.run(|| {
        let mut socket = Socket::open()?;
        for family in [Family::Ip, Family::Ip6] {
            if socket.table(family, TABLE)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Waits until a table of the command is there, or is gone.
fn wait_for_table(netns: &Netns, present: bool) -> Result<()> {
    let deadline = Instant::now() + patience(Duration::from_secs(10));
    while has_table(netns)? != present {
        ensure!(
            Instant::now() < deadline,
            "the table is still {}",
            if present { "missing" } else { "there" }
        );
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A running trace.
pub(super) struct Trace {
    child: Option<Child>,
    netns: Netns,
}

impl Trace {
    /// Starts the command, and waits until it traces.
    pub(super) fn start(netns: &Netns, arguments: &[&str]) -> Result<Trace> {
        let child = Command::new(SHUNT)
            .arg("trace")
            .args(arguments)
            .arg("--netns")
            .arg(netns.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let trace = Trace { child: Some(child), netns: netns.clone() };
        wait_for_table(netns, true)?;
        Ok(trace)
    }

    fn pid(&self) -> Result<Pid> {
        let child = self.child.as_ref().context("the command has ended")?;
        Ok(Pid::from_raw(child.id().try_into()?))
    }

    /// Waits for the end of the command, whose table must be gone then.
    pub(super) fn output(mut self) -> Result<Output> {
        let output = self.child.take().context("the command has ended")?.wait_with_output()?;
        ensure!(!has_table(&self.netns)?, "the table is still there");
        Ok(output)
    }

    /// Returns the exit code and the only report.
    fn report(self) -> Result<(i32, Value)> {
        let output = self.output()?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let json: Value = serde_json::from_slice(&output.stdout).context(stderr)?;
        let packets = json["packets"].as_array().context("no packets")?;
        ensure!(packets.len() == 1, "{json:#}");
        Ok((output.status.code().context("no exit code")?, packets[0].clone()))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Traces one packet while `send` sends it.
fn traced(netns: &Netns, to: &str, send: impl FnOnce()) -> Result<(i32, Value)> {
    let trace = Trace::start(netns, &["--to", to, "-o", "json"])?;
    send();
    trace.report()
}

/// Returns the chains of a report, each once in a row.
fn chains(report: &Value) -> Vec<String> {
    let steps = report["steps"].as_array().cloned().unwrap_or_default();
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let mut chains: Vec<String> = steps
        .iter()
        .map(|step| {
            format!("{} {} {}", text(step, "hook"), text(step, "table"), text(step, "chain"))
        })
        .collect();
    chains.dedup();
    chains
}

#[test]
fn delivered_packets_name_service_and_endpoint() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let client = || world.lab.from(&world.lab.client);
    let pods = ["pod-1", "pod-2", "pod-3"];
    for (address, protocol) in ["10.96.0.10:80", "[fd00:96::10]:80"]
        .into_iter()
        .flat_map(|address| Protocol::ALL.map(|protocol| (address, protocol)))
    {
        let protocol_name = protocol.to_string().to_lowercase();
        let send = || drop(client().probe(protocol, address).reaches(&pods));
        let (code, report) = traced(&world.lab.node, &format!("{address}/{protocol_name}"), send)?;
        assert_eq!((code, report["outcome"].as_str()), (0, Some("delivered")), "{report:#}");
        assert_eq!(report["answered"], true, "{report:#}");
        assert_eq!(report["input"], "eth0", "{report:#}");
        assert_eq!(report["service"], format!("default/web:{protocol_name}"), "{report:#}");
        let backend = report["backend"].as_str().context("no backend")?;
        let hosts = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
        let found = hosts
            .iter()
            .flat_map(|host| host.ips())
            .any(|ip| std::net::SocketAddr::new(ip, 8080).to_string() == backend);
        assert!(found, "{report:#}");
        // From outside, so that the answer has to come back through the node.
        assert!(report["translatedSource"].is_string(), "{report:#}");
        let mut wanted = vec![
            "prerouting shunt nat-prerouting",
            "prerouting shunt services",
            "prerouting shunt lb-3",
        ];
        if protocol == Protocol::Tcp {
            wanted.extend(["prerouting shunt short-attempt", "prerouting shunt lb-3"]);
        }
        wanted.push("postrouting shunt nat-postrouting");
        assert_eq!(chains(&report), wanted);
        let steps = report["steps"].as_array().context("no steps")?;
        assert!(steps.iter().all(|step| step["rule"].is_string()), "{report:#}");
        assert!(steps.iter().any(|step| step["comment"] == "marked by this table"), "{report:#}");
    }
    Ok(())
}

#[test]
fn text_shows_the_way_of_a_packet() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    world.lab.node.nft(
        "table inet firewall { chain forward {
            type filter hook forward priority 10; tcp dport 8080 accept comment \"pods\";
        }; }",
    )?;
    let trace = Trace::start(&world.lab.node, &["--to", "10.96.0.10:80"])?;
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&["pod-1", "pod-2", "pod-3"]);
    let output = trace.output()?;
    let text = String::from_utf8(output.stdout)?;
    for part in [
        " -> 10.96.0.10:80 TCP, arrived on eth0",
        "ip daddr . meta l4proto . th dport vmap @service-ips -> goto lb-3",
        "frontend default/web:tcp (element of service-ips)",
        "endpoint 10.244.",
        "inet firewall forward",
        " -> accept  # pods",
        "DELIVERED to 10.244.",
        "; a reply came back",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert_eq!(output.status.code(), Some(0), "{text}");
    Ok(())
}

#[test]
fn packet_to_a_service_without_endpoints_is_refused() -> Result<()> {
    let world = World::new()?;
    let service = cluster_ip_service("web", &["10.96.0.10", "fd00:96::10"]);
    world.manifests.write("web.yaml", manifest(&service, "web", &[]))?;
    let _agent = world.start()?;
    for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
        let send = || world.lab.from(&world.lab.client).tcp(to).refused();
        let (code, report) = traced(&world.lab.node, to, send)?;
        assert_eq!((code, report["outcome"].as_str()), (3, Some("refused")), "{report:#}");
        let by = report["by"].as_str().unwrap_or_default();
        assert!(by.contains(" shunt reject-no-endpoints rule "), "{report:#}");
        assert_eq!(report["service"], "default/web:tcp", "{report:#}");
        assert_eq!(report["answered"], Value::Null, "{report:#}");
        assert_eq!(report["reason"], "the Service has no endpoint for this packet");
    }
    Ok(())
}

#[test]
fn foreign_rule_that_drops_is_named() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    world.lab.node.nft(
        "table inet firewall { chain forward {
            type filter hook forward priority 10; meta l4proto udp th dport 8080 drop comment \"no DNS\";
        }; }",
    )?;
    for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
        let send = || world.lab.from(&world.lab.client).udp(to).dropped();
        let (code, report) = traced(&world.lab.node, &format!("{to}/udp"), send)?;
        assert_eq!((code, report["outcome"].as_str()), (3, Some("dropped")), "{report:#}");
        let by = report["by"].as_str().unwrap_or_default();
        assert!(by.starts_with("inet firewall forward rule "), "{report:#}");
        let last = report["steps"].as_array().and_then(|steps| steps.last());
        let last = last.context("no steps")?;
        assert_eq!((&last["comment"], &last["hook"]), (&"no DNS".into(), &"forward".into()));
        assert_eq!(report["reason"], "no DNS", "{report:#}");
        // Connection tracking did not keep the packet, and the trace still names the backend.
        assert!(report["backend"].is_string(), "{report:#}");
    }
    Ok(())
}

#[test]
fn endpoint_that_refuses_is_named() -> Result<()> {
    // Without servers in the pods.
    let world = World::empty()?;
    world.manifests.write("node.yaml", shunt_testbed::Node::of(&world.lab.node))?;
    let service = http_service("web", &["10.96.0.10", "fd00:96::10"]);
    let slices = http_slices("web", &[&world.lab.pod1]);
    world.manifests.write("web.yaml", format!("{service}{slices}"))?;
    let _agent = world.start()?;
    for to in ["10.96.0.10:80", "[fd00:96::10]:80"] {
        for host in [&world.lab.client, &world.lab.node] {
            let send = || world.lab.from(host).tcp(to).refused();
            let (code, report) = traced(&world.lab.node, to, send)?;
            assert_eq!((code, report["outcome"].as_str()), (3, Some("refused")), "{report:#}");
            let by = report["by"].as_str().unwrap_or_default();
            assert!(by.ends_with(":8080 (TCP reset)"), "{report:#}");
        }
    }
    Ok(())
}

#[test]
fn packet_without_a_route_is_lost_with_the_reason() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    world.lab.node.ip("rule add pref 1 to 10.244.0.0/16 blackhole")?;
    let send = || world.lab.from(&world.lab.client).udp("10.96.0.10:80").dropped();
    let (code, report) = traced(&world.lab.node, "10.96.0.10:80/udp", send)?;
    assert_eq!((code, report["outcome"].as_str()), (3, Some("lost")), "{report:#}");
    let reason = report["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("routing to 10.244."), "{report:#}");
    Ok(())
}

#[test]
fn only_the_given_source_is_traced() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let pod = world.lab.pod1.ipv4[0].to_string();
    let arguments = ["--to", "10.96.0.10:80", "--from", &pod, "-o", "json"];
    let trace = Trace::start(&world.lab.node, &arguments)?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&pods);
    world.lab.from(&world.lab.pod1).tcp("10.96.0.10:80").reaches(&pods);
    let (code, report) = trace.report()?;
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(report["input"], "veth-pod-1", "{report:#}");
    assert!(report["source"].as_str().is_some_and(|source| source.starts_with(&pod)));
    Ok(())
}

#[test]
fn packets_of_the_node_and_node_ports_are_traced() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    let node = &world.lab.node;
    for (host, to, input) in [
        (node, "10.96.0.10:80", Value::Null),
        (node, "[fd00:96::10]:80", Value::Null),
        (&world.lab.client, "192.0.2.10:30080", "eth0".into()),
        (&world.lab.client, "[2001:db8:2::10]:30080", "eth0".into()),
    ] {
        let send = || drop(world.lab.from(host).tcp(to).reaches(&pods));
        let (code, report) = traced(node, to, send)?;
        assert_eq!((code, &report["answered"]), (0, &true.into()), "{report:#}");
        assert_eq!(report["input"], input, "{report:#}");
        assert_eq!(report["service"], "default/web:tcp", "{report:#}");
        let hook = if input.is_null() { "output" } else { "prerouting" };
        assert!(chains(&report)[0].starts_with(hook), "{report:#}");
    }
    Ok(())
}

#[test]
fn endpoint_on_the_node_itself_is_reached() -> Result<()> {
    let world = World::with_web()?;
    let node = &world.lab.node;
    let _server = Echo::on(node, 8080)?;
    let service = http_service("own", &["10.96.0.11", "fd00:96::11"]);
    world.manifests.write("own.yaml", format!("{service}{}", http_slices("own", &[node])))?;
    let _agent = world.start()?;
    for to in ["10.96.0.11:80", "[fd00:96::11]:80"] {
        for host in [&world.lab.client, node] {
            let send = || drop(world.lab.from(host).tcp(to).reaches(&[&node.name]));
            let (code, report) = traced(node, to, send)?;
            assert_eq!((code, &report["answered"]), (0, &true.into()), "{report:#}");
            let backend = report["backend"].as_str().unwrap_or_default();
            assert!(backend.ends_with(":8080"), "{report:#}");
        }
    }
    Ok(())
}

#[test]
fn dropped_reply_is_named() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    world.lab.node.nft(
        "table inet firewall { chain forward {
            type filter hook forward priority 10; udp sport 8080 drop;
        }; }",
    )?;
    let send = || world.lab.from(&world.lab.client).udp("10.96.0.10:80").dropped();
    let (code, report) = traced(&world.lab.node, "10.96.0.10:80/udp", send)?;
    assert_eq!((code, report["outcome"].as_str()), (0, Some("delivered")), "{report:#}");
    let reason = report["reason"].as_str().unwrap_or_default();
    assert!(
        reason.starts_with("the reply was dropped by inet firewall forward rule"),
        "{report:#}"
    );
    Ok(())
}

#[test]
fn flow_that_was_there_before_is_named() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let flow = world.lab.client.run(|| Ok(std::net::UdpSocket::bind("0.0.0.0:0")?))?;
    flow.set_read_timeout(Some(patience(Duration::from_secs(5))))?;
    let ask = || -> Result<()> {
        flow.send_to(b"question", "10.96.0.10:80")?;
        flow.recv_from(&mut [0; 512])?;
        Ok(())
    };
    ask()?;
    let mut asked = Ok(());
    let (code, report) = traced(&world.lab.node, "10.96.0.10:80/udp", || asked = ask())?;
    asked?;
    assert_eq!((code, &report["answered"]), (0, &true.into()), "{report:#}");
    let reason = report["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("it belongs to an existing flow"), "{report:#}");
    Ok(())
}

#[test]
fn without_an_agent_rules_have_their_numbers() -> Result<()> {
    let world = World::with_web()?;
    world.start()?.stop()?;
    let send = || {
        drop(
            world
                .lab
                .from(&world.lab.client)
                .tcp("10.96.0.10:80")
                .reaches(&["pod-1", "pod-2", "pod-3"]),
        );
    };
    let (code, report) = traced(&world.lab.node, "10.96.0.10:80", send)?;
    assert_eq!((code, &report["service"]), (0, &"default/web:tcp".into()), "{report:#}");
    let steps = report["steps"].as_array().context("no steps")?;
    let (known, unknown): (Vec<&Value>, Vec<&Value>) =
        steps.iter().partition(|step| step["rule"].is_string());
    // The rules that depend on the cluster CIDR and the timeouts, which only the agent has; nft has the
    // comment of one.
    assert_eq!(unknown.len(), 2, "{report:#}");
    assert_eq!(unknown[0]["comment"], "from elsewhere than a local pod", "{report:#}");
    assert_eq!(unknown[1]["chain"], "short-attempt", "{report:#}");
    assert!(known.len() > 3, "{report:#}");
    Ok(())
}

#[test]
fn rules_that_are_new_since_the_start_are_shown() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let trace = Trace::start(&world.lab.node, &["--to", "10.96.0.10:80", "-o", "json"])?;
    let service = cluster_ip_service("web", &["10.96.0.10"]).spec("sessionAffinity: ClientIP");
    world.manifests.write("web.yaml", manifest(&service, "web", &[&world.lab.pod1]))?;
    let deadline = Instant::now() + patience(Duration::from_secs(10));
    while !world.rules()?.contains("goto lb-affinity-1") {
        ensure!(Instant::now() < deadline, "no rule of session affinity");
    }
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&["pod-1"]);
    let (code, report) = trace.report()?;
    assert_eq!(code, 0, "{report:#}");
    let steps = report["steps"].as_array().context("no steps")?;
    assert!(steps.iter().any(|step| step["chain"] == "lb-affinity-1"), "{report:#}");
    assert!(steps.iter().all(|step| step["rule"].is_string()), "{report:#}");
    Ok(())
}

#[test]
fn nft_lists_the_table() -> Result<()> {
    let world = World::empty()?;
    for to in ["10.96.0.10:80", "[fd00::a]:80/sctp"] {
        let _trace = Trace::start(&world.lab.node, &["--to", to])?;
        let rules = world.rules()?;
        assert!(rules.contains("meta nftrace set 1"), "{rules}");
        assert!(!rules.contains("invalid"), "{rules}");
    }
    Ok(())
}

#[test]
fn count_limits_the_connections() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let arguments = ["--to", "10.96.0.10:80", "--count", "3", "-o", "json"];
    let trace = Trace::start(&world.lab.node, &arguments)?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").reaches(&pods);
    let output = trace.output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(json["packets"].as_array().map(Vec::len), Some(3), "{json:#}");
    Ok(())
}

#[test]
fn nothing_seen_is_a_failure() -> Result<()> {
    let world = World::with_web()?;
    let arguments = ["trace", "--to", "10.96.0.10:80", "--timeout", "50ms"];
    let output = run_shunt(&world.lab.node, &arguments)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no packet that begins a connection to 10.96.0.10:80/tcp"), "{stderr}");
    assert!(!has_table(&world.lab.node)?);
    Ok(())
}

#[test]
fn table_goes_when_the_command_is_killed() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    for (to, signal) in [
        ("10.96.0.10:80", Signal::SIGKILL),
        ("[fd00:96::10]:80", Signal::SIGTERM),
        ("10.96.0.10:80", Signal::SIGINT),
    ] {
        let trace = Trace::start(&world.lab.node, &["--to", to])?;
        kill(trace.pid()?, signal)?;
        let output = trace.output()?;
        let expected = (signal != Signal::SIGKILL).then_some(1);
        assert_eq!(output.status.code(), expected, "{signal}");
    }
    world.assert_web_works();
    Ok(())
}

#[test]
fn second_trace_is_refused() -> Result<()> {
    let world = World::empty()?;
    let _trace = Trace::start(&world.lab.node, &["--to", "10.96.0.10:80"])?;
    let output = run_shunt(&world.lab.node, &["trace", "--to", "10.96.0.10:81"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("ip shunt-trace belongs to another process"), "{stderr}");
    assert!(has_table(&world.lab.node)?);
    Ok(())
}

/// A table as kernels before 5.12 have it after the command was killed.
const ORPHAN: &str = "table ip shunt-trace {
    comment \"shunt trace, netlink port 4000000000\"
    chain start { type filter hook prerouting priority -301; }
}";

#[test]
fn orphaned_table_is_removed() -> Result<()> {
    let world = World::with_web()?;
    world.lab.node.nft(ORPHAN)?;
    let agent = world.start()?;
    wait_for_table(&world.lab.node, false)?;
    drop(agent);

    world.lab.node.nft(ORPHAN)?;
    let output = run_shunt(&world.lab.node, &["cleanup"])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!has_table(&world.lab.node)?);

    // The command itself also takes its place.
    world.lab.node.nft(ORPHAN)?;
    let arguments = ["trace", "--to", "10.96.0.10:80", "--timeout", "10ms"];
    run_shunt(&world.lab.node, &arguments)?;
    assert!(!has_table(&world.lab.node)?);
    Ok(())
}
