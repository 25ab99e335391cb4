//! What base chains do with a packet, judged by rules that other programs wrote.

mod packets;
mod rules;
mod rulesets;

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Result;
use nfnetlink::nft::{JudgedPacket, Judgement, Passing, Socket};
use shunt_testbed::Netns;

/// Returns the lines of a section of a text.
fn section(text: &'static str, name: &str) -> impl Iterator<Item = &'static str> {
    let mut sections = text.split("\n== ");
    let lines = sections.find_map(|section| section.strip_prefix(name)?.strip_prefix('\n'));
    lines.unwrap_or_default().lines().filter(|line| !line.is_empty())
}

/// Protocol numbers of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Judges the base chains of a namespace; the key is the name of the chain.
fn judged(netns: &Netns, packet: &JudgedPacket) -> Result<BTreeMap<String, Judgement>> {
    netns.run(|| {
        let mut socket = Socket::open()?;
        let chains = socket.base_chains()?;
        chains
            .into_iter()
            .map(|chain| Ok((chain.chain.clone(), socket.judge(&chain, packet)?)))
            .collect()
    })
}

/// Writes a judgement in short: `passes`, `drops: drop in CHAIN`, `may: policy drop in CHAIN`.
fn short(judgement: &Judgement) -> String {
    match &judgement.passing {
        Passing::Passes => "passes".to_owned(),
        Passing::Drops(place) => format!("drops: {} in {}", place.what, place.chain),
        Passing::May { place, why } => {
            assert!(!why.is_empty(), "{judgement:?}");
            format!("may: {} in {}", place.what, place.chain)
        }
    }
}

/// Returns a packet of TCP from a client outside to an endpoint of a Service on this node, at the
/// forward hook.
fn to_endpoint() -> JudgedPacket {
    let client: IpAddr = [192, 0, 2, 9].into();
    let endpoint: IpAddr = [10, 244, 1, 7].into();
    JudgedPacket {
        original_destination: [10, 96, 0, 1].into(),
        original_port: 80,
        translated: true,
        input: Some("eth0".to_owned()),
        output: Some("cni0".to_owned()),
        is_local: Some(false),
        ..JudgedPacket::new(TCP, client, endpoint, 8080)
    }
}
