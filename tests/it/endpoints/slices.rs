//! A Service with thousands of endpoints.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::EndpointSlice;

use super::changes::Changes;
use crate::table::{Family, Table};
use crate::world::{World, target_ports, web};

const MANY: u16 = 5_000;
const PER_SLICE: u16 = 100;
/// For the kernel to have resized a map.
const PATIENCE: Duration = Duration::from_secs(10);

fn many_endpoints(slices: std::ops::Range<u16>) -> Result<String> {
    let mut text = String::new();
    for number in slices {
        for slice in [EndpointSlice::v4("web"), EndpointSlice::v6("web")] {
            let v4 = slice.to_string().contains("addressType: IPv4");
            let name = format!("web-{number}-{}", if v4 { "v4" } else { "v6" });
            let slice = target_ports(slice.name(&name));
            let places = number * PER_SLICE..(number + 1) * PER_SLICE;
            let slice = places.fold(slice, |slice, place| {
                let v4_address = format!("10.245.{}.{}", place / 256, place % 256);
                let address = if v4 { v4_address } else { format!("fd00:245::{place:x}") };
                slice.endpoint(&address, "nodeName: node-2")
            });
            write!(text, "{slice}")?;
        }
    }
    Ok(text)
}

#[test]
fn five_thousand_endpoints_are_all_in_use() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    // They are all addresses of one pod.
    lab.node.ip("route add 10.245.0.0/16 via 192.0.2.20\n\
         route add fd00:245::/64 via 2001:db8:2::20\n")?;
    lab.node2.ip("route add 10.245.0.0/16 via 10.244.1.21 dev veth-pod-3 onlink\n\
         route add fd00:245::/64 via fd00:244:1::21 dev veth-pod-3 onlink\n")?;
    // So that datagrams may be answered from them, too.
    lab.pod3.sysctl(&[("net/ipv6/ip_nonlocal_bind", "1")])?;
    lab.pod3.ip("route add local 10.245.0.0/16 dev lo\n\
         route add local fd00:245::/64 dev lo\n")?;
    // While the kernel still resizes the map behind the commit, it lists only a part of it.
    let wait_for_pool = |family: Family, wanted: u16| -> Result<()> {
        let args = ["list", "map", family.table(), "shunt", "endpoints"];
        let places = family.of("10.96.0.10 . tcp . 80 . ", "fd00:96::10 . tcp . 80 . ");
        let started = Instant::now();
        loop {
            let listed = lab.node.output("nft", &args)?.matches(places).count();
            if listed == usize::from(wanted) {
                return Ok(());
            }
            ensure!(started.elapsed() < PATIENCE, "{family:?}: {listed} instead of {wanted}");
        }
    };

    world.manifests.write("web.yaml", web())?;
    world.manifests.write("slices.yaml", many_endpoints(0..MANY / PER_SLICE)?)?;
    let changes = Changes::start(&world)?;
    for family in [Family::V4, Family::V6] {
        wait_for_pool(family, MANY)?;
    }
    for case in Table::CLUSTER_IPS.cases() {
        let to = case.address();
        lab.from(&lab.client).probe(case.protocol, to).times(200).reaches(&["pod-3"]);
        let client = lab.client.ip_like(to.ip()).context("a client without address")?;
        let family = case.family.of("ipv4", "ipv6");
        let protocol = case.protocol.to_string().to_lowercase();
        let list = ["-L", "-f", family, "-p", &protocol, "-s", &client.to_string()];
        let list = lab.node.output("conntrack", &list)?;
        let to = format!("dst={} ", to.ip());
        let servers: BTreeSet<&str> = list
            .lines()
            .filter(|line| line.contains(&to))
            .filter_map(|line| line.split("src=").nth(2)?.split_whitespace().next())
            .collect();
        // 196 are expected; one has to believe in 40 coincidences to expect 160.
        assert!(servers.len() > 160, "{case}: 200 connections to only {}", servers.len());
    }

    changes.write(&world, "slices.yaml", many_endpoints(1..MANY / PER_SLICE)?)?;
    for family in [Family::V4, Family::V6] {
        wait_for_pool(family, MANY - PER_SLICE)?;
    }
    for case in Table::CLUSTER_IPS.cases() {
        lab.from(&lab.client).probe(case.protocol, case.address()).reaches(&["pod-3"]);
    }
    Ok(())
}
