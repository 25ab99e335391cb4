//! Each field that is applied in place, seen in what it is for.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use shunt_testbed::{CLUSTER_CIDR, HEALTH_PORT, METRICS_PORT, Occupier};

use super::configured::{Configured, WEB, WEB_PODS, wait_until};

/// Rules change while connections are made: all of them arrive.
#[test]
fn masquerade_bit() -> Result<()> {
    let bit = |bit: u8| format!("{CLUSTER_CIDR}nftables: {{masqueradeBit: {bit}}}\n");
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
fn oom_score_adj_and_sysctls() -> Result<()> {
    let world = Configured::new("oomScoreAdj: 500\nconntrack: {udpTimeout: 31s}\n")?;
    let agent = world.agent().start()?;
    let wait_for = |wanted: [&str; 2]| {
        wait_until(&format!("{wanted:?}"), || {
            let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", agent.pid()))?;
            let timeout = world.lab.node.run(|| {
                // Not /proc/self: it is the thread that is in the namespace.
                let file = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
                Ok(fs::read_to_string(file)?)
            })?;
            Ok([score.trim(), timeout.trim()] == wanted)
        })
    };
    wait_for(["500", "31"])?;
    world.config.write("oomScoreAdj: 600\nconntrack: {udpTimeout: 32s}\n")?;
    wait_for(["600", "32"])?;
    agent.stop()
}
