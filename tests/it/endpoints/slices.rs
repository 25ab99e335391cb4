//! A Service with thousands of endpoints.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use shunt_testbed::{EndpointSlice, Protocol, eventually};

use crate::world::{TARGET, World, web};

const MANY: u16 = 5_000;
const PER_SLICE: u16 = 100;

fn many_endpoints(slices: std::ops::Range<u16>) -> Result<String> {
    let mut text = String::new();
    for number in slices {
        for slice in [EndpointSlice::v4("web"), EndpointSlice::v6("web")] {
            let v4 = slice.to_string().contains("addressType: IPv4");
            let name = format!("web-{number}-{}", if v4 { "v4" } else { "v6" });
            let slice = slice.name(&name).all_protocols(TARGET);
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
    let wait_for_pools = |wanted: u16| -> Result<()> {
        for (family, ip) in [("ip", "10.96.0.10"), ("ip6", "fd00:96::10")] {
            let places = format!("{ip} . tcp . 80 . ");
            eventually(format_args!("{family}: {wanted} places"), || {
                let listed =
                    lab.node.output("nft", &["list", "map", family, "shunt", "endpoints"])?;
                Ok((listed.matches(&places).count() == usize::from(wanted)).then_some(()))
            })?;
        }
        Ok(())
    };

    world.manifests.write("web.yaml", web())?;
    world.manifests.write("slices.yaml", many_endpoints(0..MANY / PER_SLICE)?)?;
    let _agent = world.start()?;
    wait_for_pools(MANY)?;
    let to: [SocketAddr; 2] = ["10.96.0.10:80".parse()?, "[fd00:96::10]:80".parse()?];
    let cases = to.map(|to| Protocol::ALL.map(|protocol| (to, protocol))).concat();
    for &(to, protocol) in &cases {
        lab.from(&lab.client).probe(protocol, to).times(200).reaches(&["pod-3"]);
        let client = lab.client.ip_like(to.ip()).context("a client without address")?;
        let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
        let protocol = protocol.to_string().to_lowercase();
        let list = ["-L", "-f", family, "-p", &protocol, "-s", &client.to_string()];
        let list = lab.node.output("conntrack", &list)?;
        let to = format!("dst={} ", to.ip());
        let servers: BTreeSet<&str> = list
            .lines()
            .filter(|line| line.contains(&to))
            .filter_map(|line| line.split("src=").nth(2)?.split_whitespace().next())
            .collect();
        // 196 are expected; one has to believe in 40 coincidences to expect 160.
        assert!(servers.len() > 160, "{to}{protocol}: 200 connections to only {}", servers.len());
    }

    world.manifests.write("slices.yaml", many_endpoints(1..MANY / PER_SLICE)?)?;
    wait_for_pools(MANY - PER_SLICE)?;
    for (to, protocol) in cases {
        lab.from(&lab.client).probe(protocol, to).reaches(&["pod-3"]);
    }
    Ok(())
}
