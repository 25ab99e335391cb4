//! The client of a connection: where its packets come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nfnetlink::route::{Link, Route, RouteAnswer, RouteKind, RouteQuery, links, route_to};
use shunt_core::explain::Packet;
use shunt_core::model::Family;

use crate::agent::netns;
use crate::commands::args::Destination;

const UNREAD: &str = "cannot read routes and interfaces";

/// Returns the first packet of a connection from this address, or from the node itself without one.
///
/// # Errors
/// If the kernel refuses an answer, the families differ, or the node has no route to `to`.
pub fn first_packet(from: Option<IpAddr>, to: Destination) -> Result<Packet> {
    let Some(source) = from else {
        return Ok(packet(source_for("this node", to.address)?, to, true));
    };
    same_family(source, to.address)?;
    let mut packet = packet(source, to, false);
    match route_to(RouteQuery::to(source)).context(UNREAD)? {
        RouteAnswer::Route(route) if route.kind == RouteKind::Local => packet.from_node = true,
        RouteAnswer::Route(route) => {
            let links = links().context(UNREAD)?;
            let link = links.iter().find(|link| Some(link.index) == route.output);
            packet.interface = link.map(|link| link.name.as_str().into());
        }
        RouteAnswer::Refused(_) => {}
    }
    Ok(packet)
}

/// Returns the first packet of a connection from a network namespace: from the address that the kernel
/// would choose there, on the interface on which such packets arrive here.
///
/// # Errors
/// If the namespace cannot be entered or has no route to `to`.
pub(super) fn packet_from_namespace(
    path: &Path,
    from: Option<IpAddr>,
    to: Destination,
) -> Result<Packet> {
    let what = format!("the network namespace {}", path.display());
    let (source, peer) = within(path, || {
        let source = from.map_or_else(|| source_for(&what, to.address), Ok);
        let output = route_to(RouteQuery::to(to.address)).ok().and_then(|answer| match answer {
            RouteAnswer::Route(route) => route.output,
            RouteAnswer::Refused(_) => None,
        });
        let links = links().unwrap_or_default();
        let peer = links.into_iter().find(|link| Some(link.index) == output);
        (source, peer.and_then(|link| link.peer))
    })?;
    let mut packet = first_packet(Some(source?), to)?;
    // Without a better knowledge, a packet arrives where the answer leaves.
    if let Some(link) = arrival(peer)?.filter(|_| !packet.from_node) {
        packet.interface = Some(link.name.as_str().into());
    }
    Ok(packet)
}

/// Returns the first packet for explanations without a kernel: from an unknown place, or from the node
/// with this address.
pub(super) fn assumed_packet(
    from: Option<IpAddr>,
    node: Option<IpAddr>,
    to: Destination,
) -> Packet {
    let unspecified = match Family::of(to.address) {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    packet(from.or(node).unwrap_or(unspecified), to, from.is_none())
}

fn packet(source: IpAddr, to: Destination, from_node: bool) -> Packet {
    let Destination { address: destination, port, protocol } = to;
    Packet { source, destination, protocol, port, interface: None, from_node }
}

/// Returns the interface on which packets from the other end of a veth pair arrive for the rules:
/// the bridge, if the end here is a port of one.
fn arrival(peer: Option<u32>) -> Result<Option<Link>> {
    let links = links().context(UNREAD)?;
    let by_index = |index: u32| links.iter().find(|link| link.index == index);
    let here = peer.and_then(by_index).filter(|link| link.kind.as_deref() == Some("veth"));
    Ok(here.map(|here| here.master.and_then(by_index).unwrap_or(here).clone()))
}

fn same_family(from: IpAddr, to: IpAddr) -> Result<()> {
    let [own, other] = [from, to].map(Family::of);
    ensure!(own == other, "--from {from} is an {own} address, and the destination {to} is {other}");
    Ok(())
}

/// Returns the source address that the kernel chooses for a destination. `what` names the sender.
fn source_for(what: &str, to: IpAddr) -> Result<IpAddr> {
    let reason = match route_to(RouteQuery::to(to)) {
        Ok(RouteAnswer::Route(Route { source: Some(source), .. })) => return Ok(source),
        Ok(RouteAnswer::Route(_)) => "no source address".to_owned(),
        Ok(RouteAnswer::Refused(errno)) => errno.desc().to_owned(),
        Err(error) => error.to_string(),
    };
    bail!(
        "{what} has no route to {to}: {reason}; the connection fails there, before it reaches any \
         rule of the node"
    )
}

/// Runs `then` in a thread inside the network namespace.
///
/// # Errors
/// If it cannot be entered.
pub(super) fn within<T: Send>(path: &Path, then: impl FnOnce() -> T + Send) -> Result<T> {
    let run = || -> Result<T> {
        netns::enter(Some(path))?;
        Ok(then())
    };
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
