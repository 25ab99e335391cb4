//! The modules of this crate against the kernel of this machine, in fresh network namespaces.

mod base_chains;
mod connections;
mod judge;
mod lookup;
mod route;
mod sockets;
mod timeouts;
mod trace;

use anyhow::Result;
use nfnetlink::route::{RouteAnswer, RouteKind, RouteQuery, route_to};
use shunt_testbed::{Netns, eventually};

/// Waits until the namespace has these IPv6 addresses: the kernel makes their local routes after
/// the carrier event of the link.
fn wait_until_local(netns: &Netns, addresses: &[&str]) -> Result<()> {
    netns.run(|| {
        addresses.iter().try_for_each(|address| {
            let query = RouteQuery::to(address.parse()?);
            eventually(address, || Ok(is_local(route_to(query)?).then_some(())))
        })
    })
}

fn is_local(answer: RouteAnswer) -> bool {
    matches!(answer, RouteAnswer::Route(route) if route.kind == RouteKind::Local)
}
