//! What connection tracking knows, and the words for it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shunt::flows::{Conntrack, Report, Sweep};
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::{self, FrontendKey};
use shunt_testbed::Netns;

/// A flow, as its client sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) protocol: String,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
}

impl Flow {
    pub(crate) fn udp(from: SocketAddr, to: SocketAddr) -> Flow {
        Flow { protocol: "udp".to_owned(), from, to }
    }

    /// Reads a line of `conntrack -L -o extended`; `None` if the protocol has no ports.
    pub(crate) fn parse(line: &str) -> Option<Flow> {
        let value = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
        let address = |ip: &str, port: &str| -> Option<SocketAddr> {
            Some(SocketAddr::new(value(ip)?.parse().ok()?, value(port)?.parse().ok()?))
        };
        Some(Flow {
            protocol: line.split_whitespace().nth(2)?.to_owned(),
            from: address("src=", "sport=")?,
            to: address("dst=", "dport=")?,
        })
    }
}

/// All flows that connection tracking knows, according to `conntrack`.
pub(crate) fn flows(ns: &Netns) -> Result<BTreeSet<Flow>> {
    let mut flows = BTreeSet::new();
    for family in ["ipv4", "ipv6"] {
        let listing = ns.output("conntrack", &["-L", "-o", "extended", "-f", family])?;
        flows.extend(listing.lines().filter_map(Flow::parse));
    }
    Ok(flows)
}

/// The flows, once these are among them.
pub(crate) fn flows_with(ns: &Netns, wanted: &BTreeSet<Flow>) -> Result<BTreeSet<Flow>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let flows = flows(ns)?;
        if wanted.is_subset(&flows) {
            return Ok(flows);
        }
        let missing: Vec<_> = wanted.difference(&flows).collect();
        ensure!(Instant::now() < deadline, "no flows: {missing:?}");
    }
}

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().expect("address:port")
}

pub(crate) fn backend(text: &str) -> Backend {
    let address = socket(text);
    Backend { address: address.ip(), port: address.port() }
}

pub(crate) fn frontend(protocol: Protocol, text: &str) -> FrontendKey {
    let address = socket(text);
    FrontendKey::Address(address.ip(), protocol, address.port())
}

/// Where flows may stay, of a frontend that is to be searched.
pub(crate) fn serving(backends: &[&str]) -> plan::Flow {
    plan::Flow { serving: backends.iter().map(|text| backend(text)).collect(), search: true }
}

/// Sweeps one family in a namespace, over a new socket.
pub(crate) fn sweep(ns: &Netns, family: Family, sweep: &Sweep) -> Result<Report> {
    ns.run(|| Ok(Conntrack::open()?.sweep(family, sweep, &mut |_| false)?))
}
