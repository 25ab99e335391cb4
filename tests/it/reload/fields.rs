//! Each field that is applied in place, seen in what it is for.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use shunt_testbed::{Occupier, Protocol};

use super::configured::{Configured, NODE_PORT, WEB, WEB_PODS, wait_until};
use crate::table::{self, Case, Family, Frontend};
use crate::world::{SHUNT, manifest, web};
use shunt_testbed::{HEALTH_PORT, METRICS_PORT};

const CIDRS: &str = "clusterCIDR: 10.244.0.0/16,fd00:244::/48\n";

/// Rules change while connections are made: all of them arrive.
#[test]
fn masquerade_bit() -> Result<()> {
    let bit = |bit: u8| format!("{CIDRS}nftables: {{masqueradeBit: {bit}}}\n");
    let world = Configured::new(&bit(14))?;
    let agent = world.agent().start()?;
    let over = AtomicBool::new(false);
    let client = world.lab.from(&world.lab.client);
    std::thread::scope(|scope| -> Result<()> {
        let stream = scope.spawn(|| -> Result<usize> {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                let tally = client.tcp(WEB).tally(10, std::time::Duration::from_secs(5))?;
                let reached: usize = WEB_PODS.iter().map(|pod| tally.reached(pod)).sum();
                anyhow::ensure!(reached == tally.total(), "{tally:?}");
                sent += tally.total();
            }
            Ok(sent)
        });
        let changed = (0..10).try_for_each(|n| {
            world.config.write(&bit(n))?;
            world.wait_for_rules(&format!("0x{:08x}", 1_u32 << n), true)
        });
        over.store(true, Ordering::Relaxed);
        let sent = stream.join().map_err(|_| anyhow::anyhow!("the stream panicked"))??;
        assert!(sent > 0);
        changed
    })?;
    client.tcp(WEB).reaches(&WEB_PODS).source_masqueraded();
    agent.stop()
}

#[test]
fn masquerade_all() -> Result<()> {
    let world = Configured::new(CIDRS)?;
    let agent = world.agent().start()?;
    let pod = || world.lab.from(&world.lab.pod1).tcp(WEB).reaches(&WEB_PODS).not_at("pod-1");
    pod().source_preserved();
    world.config.write(&format!("{CIDRS}nftables: {{masqueradeAll: true}}\n"))?;
    world.wait_for_rules("comment \"masqueradeAll\"", true)?;
    pod().source_masqueraded();
    agent.stop()
}

#[test]
fn detection_of_local_traffic() -> Result<()> {
    let world = Configured::new("")?;
    let agent = world.agent().start()?;
    let client = || world.lab.from(&world.lab.client).tcp(WEB).reaches(&WEB_PODS);
    client().source_preserved();
    for (settings, rule) in [
        (CIDRS, "10.244.0.0/16"),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth-}\n",
            "veth-*",
        ),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n", "cni0"),
    ] {
        world.config.write(settings)?;
        world.wait_for_rules(rule, true)?;
        client().source_masqueraded();
    }
    world.config.write("")?;
    world.wait_for_rules("cni0", false)?;
    client().source_preserved();
    agent.stop()
}

#[test]
fn node_port_addresses_and_bind_address() -> Result<()> {
    let world = Configured::new("mode: nftables\n")?;
    let agent = world.agent().start()?;
    let client = world.lab.from(&world.lab.client);
    let [first, second] = [10, 11].map(|last| SocketAddr::from(([192, 0, 2, last], NODE_PORT)));
    client.tcp(first).reaches(&WEB_PODS);
    client.tcp(second).refused();
    for (settings, offered, other) in [
        ("nodePortAddresses: [192.0.2.11/32]\n", second, Some(first)),
        ("mode: nftables\nbindAddress: 192.0.2.10\n", first, Some(second)),
        ("nodePortAddresses: [192.0.2.0/24]\n", second, None),
        ("mode: nftables\nbindAddress: 192.0.2.11\n", second, Some(first)),
        ("mode: ''\n", second, None),
    ] {
        world.config.replace(settings)?;
        client.tcp(offered).eventually().reaches(&WEB_PODS);
        match other {
            Some(other) => client.tcp(other).eventually().refused(),
            None => drop(client.tcp(first).eventually().reaches(&WEB_PODS)),
        }
    }
    agent.stop()
}

/// KEP-5707: without the gate, packets to ExternalIPs leave the node as they came.
#[test]
fn feature_gate_of_external_ips() -> Result<()> {
    let off = format!("{CIDRS}featureGates: {{AllowServiceExternalIPs: false}}\n");
    let world = Configured::new(&off)?;
    let pods = [&world.lab.pod1, &world.lab.pod2];
    world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
    let agent = world.agent().start()?;
    let client = world.lab.from(&world.lab.client);
    let to = |frontend, family| {
        Case { frontend, family, protocol: Protocol::Tcp }.address_of(table::WEB)
    };
    let external_ips = Family::ALL.map(|family| to(Frontend::ExternalIp, family));
    for family in Family::ALL {
        client.tcp(to(Frontend::LoadBalancer, family)).reaches(&WEB_PODS);
    }
    for ip in external_ips {
        client.tcp(ip).unhandled();
        let mut explain = world.lab.node.command(SHUNT);
        let explained = explain.args(["explain", &format!("--to={ip}")]).output()?;
        let text = String::from_utf8_lossy(&explained.stdout);
        assert!(text.contains("{AllowServiceExternalIPs: false} turns externalIPs off"), "{text}");
    }
    world.config.write(CIDRS)?;
    for ip in external_ips {
        client.tcp(ip).eventually().reaches(&WEB_PODS).source_masqueraded();
    }
    world.config.write(&off)?;
    for ip in external_ips {
        client.tcp(ip).eventually().unhandled();
    }
    agent.stop()
}

/// A commit that would have to wait for minutes is made as soon as it need not wait.
#[test]
fn min_sync_period() -> Result<()> {
    let slow = "nftables: {syncPeriod: 20m, minSyncPeriod: 10m}\n";
    let world = Configured::new(slow)?;
    let agent = world.agent().start()?;
    world.add("late", "10.96.0.20")?;
    let late = world.lab.from(&world.lab.client).tcp("10.96.0.20:80");
    // What was noticed waits.
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let pending = "kubeproxy_sync_proxy_rules_service_changes_pending 1";
        answer.body.contains(pending).then_some(())
    })?;
    late.clone().unhandled();
    world.config.write("nftables: {syncPeriod: 20m}\n")?;
    late.eventually().reaches(&["pod-1"]);
    agent.stop()
}

/// Tables that cannot be written make the agent unhealthy after twice that time.
#[test]
fn sync_period() -> Result<()> {
    let world = Configured::new("nftables: {syncPeriod: 20m}\n")?;
    let agent = world.agent().arg("--own-tables=false").start()?;
    let _occupier = Occupier::enter(&world.lab.node.ns)?;
    agent.wait_for_log(&["ERROR", "nothing was programmed"])?;
    assert_eq!(agent.http_status("/livez")?, 200);
    world.config.write("nftables: {syncPeriod: 100ms}\n")?;
    agent.wait_for_answer(HEALTH_PORT, "/livez", |answer| (answer.status == 503).then_some(()))?;
    agent.stop()
}

#[test]
fn log_level_and_format() -> Result<()> {
    let world = Configured::new("")?;
    let agent = world.agent().start()?;
    assert!(!agent.log().contains("committed"), "{}", agent.log());
    world.config.write("logging: {verbosity: 2}\n")?;
    agent.wait_for_log(&["applied", "logging.verbosity"])?;
    world.add("one", "10.96.0.21")?;
    agent.wait_for_log(&["DEBUG", "committed"])?;
    world.config.write("logging: {verbosity: 2, format: json}\n")?;
    agent.wait_for_log(&["applied", "logging.format"])?;
    world.add("two", "10.96.0.22")?;
    let line = agent.wait_for_log(&["{", "committed"])?;
    let line: serde_json::Value = serde_json::from_str(&line)?;
    assert_eq!((&line["level"], &line["msg"]), (&"DEBUG".into(), &"committed".into()));
    // A flag counts more than the file, then as now.
    agent.stop()?;
    let agent = world.agent().arg("-v=0").start()?;
    world.config.write("logging: {verbosity: 4}\nbindAddress: 192.0.2.10\n")?;
    agent.wait_for_log(&["applied", "changed=\"bindAddress, logging.format\""])?;
    agent.stop()
}

#[test]
fn conntrack_sysctls() -> Result<()> {
    let world = Configured::new("conntrack: {udpTimeout: 31s}\n")?;
    let agent = world.agent().start()?;
    let value = || {
        world.lab.node.run(|| {
            // Not /proc/self: it is the thread that is in the namespace.
            let file = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
            Ok(fs::read_to_string(file)?.trim().to_owned())
        })
    };
    wait_until("31", || Ok(value()? == "31"))?;
    world.config.write("conntrack: {udpTimeout: 32s}\n")?;
    wait_until("32", || Ok(value()? == "32"))?;
    agent.stop()
}

#[test]
fn addresses_of_servers() -> Result<()> {
    let world = Configured::new("")?;
    let agent = world.agent().start()?;
    world
        .config
        .write("healthzBindAddress: 127.0.0.1:9001\nmetricsBindAddress: 127.0.0.1:9002\n")?;
    agent.wait_for_answer(9001, "/healthz", |answer| (answer.status == 200).then_some(()))?;
    agent.wait_for_answer(9002, "/proxyMode", |answer| (answer.status == 200).then_some(()))?;
    for port in [10_256, 10_249] {
        assert!(agent.http_get(port, "/healthz").is_err(), "{port} is served still");
    }
    let configz = agent.http_get(9002, "/configz")?.body;
    assert!(configz.contains("127.0.0.1:9001"), "{configz}");
    agent.stop()
}

#[test]
fn oom_score_adj() -> Result<()> {
    let world = Configured::new("oomScoreAdj: 500\n")?;
    let agent = world.agent().start()?;
    let score = || -> Result<String> {
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid()))?;
        Ok(score.trim().to_owned())
    };
    assert_eq!(score()?, "500");
    world.config.write("oomScoreAdj: 600\n")?;
    wait_until("600", || Ok(score()? == "600"))?;
    agent.stop()
}
