//! The modules of this crate against the kernel of this machine, in fresh network namespaces.

mod base_chains;
mod connections;
mod hooks;
mod judge;
mod lookup;
mod route;
mod sockets;
mod timeouts;
mod trace;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nfnetlink::route::{RouteAnswer, RouteKind, RouteQuery, route_to};
use shunt_testbed::{Netns, patience};

/// Waits until the namespace has these IPv6 addresses: the kernel makes their local routes after
/// the carrier event of the link.
fn wait_until_local(netns: &Netns, addresses: &[&str]) -> Result<()> {
    let deadline = Instant::now() + patience(Duration::from_secs(10));
    netns.run(|| {
        for address in addresses {
            let query = RouteQuery::to(address.parse()?);
            while !is_local(route_to(query)?) {
                ensure!(Instant::now() < deadline, "{address} does not become local");
                thread::yield_now();
            }
        }
        Ok(())
    })
}

fn is_local(answer: RouteAnswer) -> bool {
    matches!(answer, RouteAnswer::Route(route) if route.kind == RouteKind::Local)
}
