//! The client of a connection: where its packets come from.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use nfnetlink::route::{Link, Route, RouteAnswer, RouteKind, RouteQuery, links, route_to};
use nix::sched::{CloneFlags, setns};
use shunt_core::explain::{Entry, Packet};
use shunt_core::model::Family;

use crate::agent::netns;
use crate::commands::args::Destination;

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The source address.
    pub address: IpAddr,
    /// Where its packets enter the node's rules.
    pub entry: Entry,
    /// The network namespace of the client, if it was given.
    pub namespace: Option<PathBuf>,
}

const UNREAD: &str = "cannot read routes and interfaces";

impl Client {
    /// Returns a client with this address, or the node itself without one.
    ///
    /// # Errors
    /// If the kernel refuses an answer, the families differ, or the node has no route to `to`.
    pub fn find(from: Option<IpAddr>, to: IpAddr) -> Result<Client> {
        let Some(address) = from else {
            let address = source_for("this node", to)?;
            return Ok(Client { address, entry: Entry::Node, namespace: None });
        };
        same_family(address, to)?;
        let entry = match route_to(RouteQuery::to(address)).context(UNREAD)? {
            RouteAnswer::Route(route) if route.kind == RouteKind::Local => Entry::Node,
            RouteAnswer::Route(route) => {
                let links = links().context(UNREAD)?;
                let link = links.iter().find(|link| Some(link.index) == route.output);
                Entry::Interface(link.map(|link| link.name.as_str().into()))
            }
            RouteAnswer::Refused(_) => Entry::Interface(None),
        };
        Ok(Client { address, entry, namespace: None })
    }

    /// Returns the client that runs in a network namespace: its address as the kernel would choose
    /// it there, and the interface on which its packets arrive here.
    ///
    /// # Errors
    /// If the namespace cannot be entered or has no route to `to`.
    pub fn in_namespace(namespace: &Path, from: Option<IpAddr>, to: IpAddr) -> Result<Client> {
        let path = netns::path(namespace);
        let what = format!("the network namespace {}", path.display());
        let (address, peer) = within(&path, || {
            let address = from.map_or_else(|| source_for(&what, to), Ok);
            let output = route_to(RouteQuery::to(to)).ok().and_then(|answer| match answer {
                RouteAnswer::Route(route) => route.output,
                RouteAnswer::Refused(_) => None,
            });
            let links = links().unwrap_or_default();
            let peer = links.into_iter().find(|link| Some(link.index) == output);
            (address, peer.and_then(|link| link.peer))
        })?;
        let address = address?;
        same_family(address, to)?;
        let mut client = Client::find(Some(address), to)?;
        // Without a better knowledge, a packet arrives where the answer leaves.
        if let Entry::Interface(interface) = &mut client.entry
            && let Some(arrives_on) = arrival(peer)?
        {
            *interface = Some(arrives_on.name.as_str().into());
        }
        client.namespace = Some(path);
        Ok(client)
    }
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
    let run = || -> io::Result<T> {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
        Ok(then())
    };
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    result.with_context(|| {
        format!(
            "cannot enter the network namespace {}; write a process ID, a name of ip netns or a \
             path, and run this with CAP_SYS_ADMIN",
            path.display()
        )
    })
}

impl Client {
    /// Returns a client for explanations without a kernel: one at an unknown place, or the node with
    /// this address.
    #[must_use]
    pub fn assumed(from: Option<IpAddr>, node: Option<IpAddr>, to: IpAddr) -> Client {
        let unspecified = match Family::of(to) {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        Client {
            address: from.or(node).unwrap_or(unspecified),
            entry: if from.is_some() { Entry::Interface(None) } else { Entry::Node },
            namespace: None,
        }
    }

    /// Returns the first packet of a connection.
    #[must_use]
    pub fn packet(&self, Destination { address, port, protocol }: Destination) -> Packet {
        let (source, entry) = (self.address, self.entry.clone());
        Packet { source, destination: address, protocol, port, entry }
    }
}
