//! `shunt status`: what a person on the node is told, and first what is wrong.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Netns, Occupier, Protocol, Service};

use crate::world::{
    CLUSTER_CIDR, SHUNT, World, cluster_ip_service, http_slices, manifest, run_shunt, status_json,
    status_text, web,
};

/// Waits until the status is as `is_so` wants it.
fn wait_for(ns: &Netns, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let start = Instant::now();
    loop {
        let status = status_json(ns);
        if let Some(status) = status.as_ref().ok().filter(|status| is_so(status)) {
            return Ok(status.clone());
        }
        ensure!(start.elapsed() < Duration::from_secs(20), "still {status:#?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_an_agent_there_is_one_sentence() -> Result<()> {
    let output = run_shunt(&Netns::new()?, &["status"])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told, "error: no shunt runs in this network namespace\n");
    Ok(())
}

#[test]
fn all_is_well_and_counted() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.agent(CLUSTER_CIDR)?.start()?;
    let status = wait_for(&world.lab.node, |status| status["lastSync"].is_object())?;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["process"], agent.pid());
    assert_eq!(status["node"], "node-1");
    assert_eq!(status["healthy"], true);
    assert_eq!(status["source"]["kind"], "manifests");
    assert_eq!(status["generation"], world.lab.node.nft_generation()?);
    let primary = serde_json::json!({
        "IPv4": ["192.0.2.10"], "IPv6": ["2001:db8:2::10"], "loopback": []
    });
    assert_eq!(status["nodePorts"], primary);
    let counts = &status["counts"];
    let number = |name: &str| counts[name].as_u64().unwrap_or_default();
    assert_eq!((number("services"), number("servicePorts")), (1, 3));
    assert_eq!((number("endpointSlices"), number("endpoints")), (2, 6));
    // A ClusterIP, an external IP, a VIP and a node port, each on three protocols.
    assert_eq!(counts["frontends"], serde_json::json!({"IPv4": 12, "IPv6": 12}));
    assert_eq!(counts["elements"]["service-ips"]["IPv4"], 9);

    let text = status_text(&world.lab.node)?;
    assert!(text.starts_with("OK  all changes are in the kernel\n"), "{text}");
    for part in [
        "on node node-1, process ",
        "manifests in /",
        "1 Services with 3 ports",
        "node ports   on 192.0.2.10, 2001:db8:2::10\n",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let width = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    assert!(width <= 100, "{width} characters wide:\n{text}");
    Ok(())
}

#[test]
fn conflicts_and_ports_that_somebody_else_has_are_told() -> Result<()> {
    let world = World::new()?;
    let taken = world.lab.node.run(|| Ok(TcpListener::bind("192.0.2.10:31007")?))?;
    let local = Service::new("local")
        .node_port("tcp", Protocol::Tcp, 80, 30_007)
        .cluster_ips(&["10.96.0.7"])
        .load_balancer(&["203.0.113.7"])
        .spec("externalTrafficPolicy: Local")
        .spec("healthCheckNodePort: 31007");
    world.manifests.write("local.yaml", local)?;
    for (name, ip) in [("first", "10.96.0.31"), ("second", "10.96.0.32")] {
        let service = cluster_ip_service(name, &[ip]).external_ips(&["198.51.100.7"]);
        world.manifests.write(&format!("{name}.yaml"), service)?;
    }
    let _agent = world.start()?;
    let has = |status: &Value, list: &str, count: usize| {
        status[list].as_array().is_some_and(|list| list.len() == count)
    };
    let status = wait_for(&world.lab.node, |status| {
        has(status, "conflicts", 3) && has(status, "unboundHealthPorts", 1)
    })?;
    assert_eq!(status["conflicts"][0]["loser"], "default/second");
    assert_eq!(status["unboundHealthPorts"][0]["service"], "default/local");
    assert_eq!(status["warnings"].as_array().map(Vec::len), Some(4), "{status:#}");
    let told = status_text(&world.lab.node)?;
    let first: Vec<&str> = told.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(first.len(), 4, "{told}");
    assert!(first.iter().all(|line| line.starts_with("WARNING  ")), "{told}");
    let unbound = "192.0.2.10:31007 for the health checks of Service default/local";
    assert!(first[3].contains(unbound), "{told}");

    drop(taken);
    world.manifests.remove("second.yaml")?;
    wait_for(&world.lab.node, |status| {
        has(status, "conflicts", 0) && has(status, "unboundHealthPorts", 0)
    })?;
    Ok(())
}

/// Services without endpoints are normal: they are told, and the exit status is that of success.
#[test]
fn services_without_endpoints_are_counted_and_named() -> Result<()> {
    let world = World::with_web()?;
    let service = |name: &str, octet: u8, policy: &str, pods: &[&Host]| {
        let service = Service::new(name)
            .cluster_ips(&[&format!("10.96.0.{octet}")])
            .node_port("http", Protocol::Tcp, 80, 30_000 + u16::from(octet))
            .spec(policy);
        world
            .manifests
            .write(&format!("{name}.yaml"), format!("{service}{}", http_slices(name, pods)))
    };
    let (internal, external) = ("internalTrafficPolicy: Local", "externalTrafficPolicy: Local");
    service("empty-2", 21, internal, &[])?;
    service("empty-1", 22, external, &[])?;
    service("inside", 23, internal, &[&world.lab.pod3])?;
    service("outside", 24, external, &[&world.lab.pod3])?;
    service("here", 25, external, &[&world.lab.pod1])?;
    let _agent = world.start()?;
    let unserved = |name: &str, ports: u8, services: &[&str]| {
        let ports = serde_json::json!({"IPv4": ports, "IPv6": 0});
        (name.to_owned(), serde_json::json!({"servicePorts": ports, "services": services}))
    };
    let expected: Value = [
        unserved("withoutEndpoints", 2, &["default/empty-1", "default/empty-2"]),
        unserved("noLocalInternal", 1, &["default/inside"]),
        unserved("noLocalExternal", 1, &["default/outside"]),
    ]
    .into_iter()
    .collect::<serde_json::Map<_, _>>()
    .into();
    wait_for(&world.lab.node, |status| status["unserved"] == expected)?;

    let text = status_text(&world.lab.node)?;
    assert!(text.starts_with("OK  "), "{text}");
    for line in [
        "no endpoint  Service ports: 2 IPv4, 0 IPv6; they reject connections",
        "no local     Service ports: 1 IPv4, 0 IPv6; internalTrafficPolicy Local, endpoints on other nodes",
        "no local     Service ports: 1 IPv4, 0 IPv6; externalTrafficPolicy Local, endpoints on other nodes",
    ] {
        assert!(text.lines().any(|it| it == line) && line.len() <= 100, "no {line:?} in\n{text}");
    }
    assert!(!text.contains("empty-1"), "{text}");
    let verbose = run_shunt(&world.lab.node, &["status", "-v"])?;
    let verbose = String::from_utf8_lossy(&verbose.stdout).into_owned();
    for name in ["empty-1", "empty-2", "inside", "outside"] {
        let line = format!("             default/{name}");
        assert!(verbose.lines().any(|it| it == line), "no {name} in\n{verbose}");
    }

    for name in ["empty-1", "empty-2", "inside", "outside"] {
        world.manifests.remove(&format!("{name}.yaml"))?;
    }
    let text = wait_for(&world.lab.node, |status| status["counts"]["services"] == 2)
        .and_then(|_| status_text(&world.lab.node))?;
    assert!(!text.contains("no endpoint") && !text.contains("no local"), "{text}");
    Ok(())
}

#[test]
fn repairs_are_counted_and_failures_come_first() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?;
    world.lab.node.nft("flush map ip shunt service-ips")?;
    let status = wait_for(&world.lab.node, |status| status["driftRepairs"] == 1)?;
    assert_eq!(status["ownsTables"], false);
    let told = status_text(&world.lab.node)?;
    assert!(told.contains("repairs      1, the last "), "{told}");
    assert!(told.starts_with("OK  "), "{told}");

    let occupier = Occupier::enter(&world.lab.node)?;
    let status = wait_for(&world.lab.node, |status| status["failure"].is_object())?;
    let problem = status["problems"][0].as_str().unwrap_or_default();
    assert!(problem.starts_with("the last sync failed "), "{status:#}");
    let told = status_text(&world.lab.node)?;
    assert!(told.starts_with("PROBLEM  the last sync failed "), "{told}");
    drop(occupier);
    wait_for(&world.lab.node, |status| status["failure"].is_null())?;
    world.assert_web_works();
    Ok(())
}

/// In a rolling update the old one answers until the new one has taken over.
#[test]
fn the_agent_that_acts_is_the_one_that_answers() -> Result<()> {
    let world = World::with_web()?;
    let first = world.start()?;
    let second = world.agent(CLUSTER_CIDR)?.spawn()?;
    second.wait_for_log(&["waiting until it ends"])?;
    assert_eq!(status_json(&world.lab.node)?["process"], first.pid());
    first.kill()?;
    second.wait_ready()?;
    wait_for(&world.lab.node, |status| status["process"] == second.pid())?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&world.lab.pod2]))?;
    wait_for(&world.lab.node, |status| status["counts"]["endpoints"] == 2)?;
    Ok(())
}

/// A container may have user 0 and the node's network, but no capability.
#[test]
fn status_answers_only_who_may_change_rules() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    wait_for(&world.lab.node, |status| status["lastSync"].is_object())?;
    for question in [&["status"][..], &["services"], &["status", "--startup-probe"]] {
        let mut command = world.lab.node.command("setpriv");
        command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", SHUNT]);
        let output = command.args(question).output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(output.stdout.is_empty() && told.contains("CAP_NET_ADMIN"), "{told}");
    }
    Ok(())
}

/// Any process of the node's network can connect, as often as it likes.
#[test]
fn clients_that_prove_nothing_delay_no_command() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    wait_for(&world.lab.node, |status| status["lastSync"].is_object())?;
    let name = world.lab.node.run(abstract_socket)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = || {
            world.lab.node.run(|| {
                let mut latest = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    let address = SocketAddr::from_abstract_name(&name)?;
                    let mut stream = UnixStream::connect_addr(&address)?;
                    // The beginning of a question that never ends, if the agent listens at all.
                    let _ = stream.write_all(b"{");
                    latest.push_back(stream);
                    latest.drain(..latest.len().saturating_sub(150));
                }
                Ok(())
            })
        };
        let floods = [scope.spawn(flood), scope.spawn(flood)];
        let commands = || {
            for _ in 0..10 {
                let output = run_shunt(&world.lab.node, &["status"])?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        };
        let result = commands();
        is_over.store(true, Ordering::Relaxed);
        for flood in floods {
            flood.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        result
    })
}

/// Returns the name of the agent's socket in the network namespace of this thread.
fn abstract_socket() -> Result<String> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let name = sockets.split_whitespace().find_map(|word| word.strip_prefix("@shunt/"));
    Ok(format!("shunt/{}", name.context("no socket of shunt")?))
}
