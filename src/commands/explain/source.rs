//! The client of a connection: where its packets come from.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use nfnetlink::route::{Link, RouteAnswer, RouteKind, RouteQuery, links, route_to};
use nix::sched::{CloneFlags, setns};
use shunt_core::model::Family;

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The source address.
    pub address: IpAddr,
    /// Where its packets enter the node's rules.
    pub origin: Origin,
    /// The network namespace of the client, if it was given.
    pub namespace: Option<PathBuf>,
}

/// Where packets of a client enter the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The node itself sends them.
    Node,
    /// They arrive on this interface; `None` if no route leads back to the client.
    Interface(Option<Link>),
}

/// Why the client of a connection is not known.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Source and destination are of different families.
    #[error(
        "--from {from} is an {} address, and the destination {to} is {}",
        Family::of(*.from), Family::of(*.to)
    )]
    OtherFamily {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
    /// The namespace does not exist, or cannot be entered.
    #[error("cannot enter the network namespace {}: {source}; write a process ID, a name of ip \
             netns or a path, and run this with CAP_SYS_ADMIN", .path.display())]
    Namespace {
        /// The path of the namespace.
        path: PathBuf,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The client cannot even send the packet.
    #[error(
        "{what} has no route to {to}: {reason}; a connection fails there, before it reaches any \
             rule of the node"
    )]
    NoRoute {
        /// The node or the namespace.
        what: String,
        /// The destination.
        to: IpAddr,
        /// The reason.
        reason: String,
    },
    /// The kernel does not list interfaces or routes.
    #[error("cannot read routes: {0}")]
    Kernel(#[from] nfnetlink::Error),
}

impl Client {
    /// Returns a client with this address, or the node itself without one.
    ///
    /// # Errors
    /// If the kernel refuses an answer, the families differ, or the node has no route to `to`.
    pub fn find(from: Option<IpAddr>, to: IpAddr) -> Result<Client, ClientError> {
        let Some(address) = from else {
            let address = source_for(to).map_err(|reason| ClientError::NoRoute {
                what: "this node".to_owned(),
                to,
                reason,
            })?;
            return Ok(Client { address, origin: Origin::Node, namespace: None });
        };
        same_family(address, to)?;
        let origin = match route_to(RouteQuery::to(address))? {
            RouteAnswer::Route(route) if route.kind == RouteKind::Local => Origin::Node,
            RouteAnswer::Route(route) => Origin::Interface(interface(route.output)?),
            RouteAnswer::Refused(_) => Origin::Interface(None),
        };
        Ok(Client { address, origin, namespace: None })
    }

    /// Returns the client that runs in a network namespace: its address as the kernel would choose
    /// it there, and the interface on which its packets arrive here.
    ///
    /// # Errors
    /// If the namespace cannot be entered or has no route to `to`.
    pub fn in_namespace(
        namespace: &Path,
        from: Option<IpAddr>,
        to: IpAddr,
    ) -> Result<Client, ClientError> {
        let path = namespace_path(namespace);
        let inside = within(&path, || {
            let address = match from {
                Some(address) => Ok(address),
                None => source_for(to),
            };
            let output = route_to(RouteQuery::to(to)).ok().and_then(|answer| match answer {
                RouteAnswer::Route(route) => route.output,
                RouteAnswer::Refused(_) => None,
            });
            let links = links().unwrap_or_default();
            let peer = links.into_iter().find(|link| Some(link.index) == output);
            (address, peer.and_then(|link| link.peer))
        })?;
        let (address, peer) = inside;
        let address = address.map_err(|reason| ClientError::NoRoute {
            what: format!("the network namespace {}", path.display()),
            to,
            reason,
        })?;
        same_family(address, to)?;
        let mut client = Client::find(Some(address), to)?;
        // Without a better knowledge, a packet arrives where the answer leaves.
        if let Origin::Interface(interface) = &mut client.origin
            && let Some(arrives_on) = arrival(peer)?
        {
            *interface = Some(arrives_on);
        }
        client.namespace = Some(path);
        Ok(client)
    }
}

/// Returns the interface on which packets from the other end of a veth pair arrive for the rules:
/// the bridge, if the end here is a port of one.
fn arrival(peer: Option<u32>) -> Result<Option<Link>, ClientError> {
    let links = links()?;
    let by_index = |index: u32| links.iter().find(|link| link.index == index);
    let here = peer.and_then(by_index).filter(|link| link.kind.as_deref() == Some("veth"));
    Ok(here.map(|here| here.master.and_then(by_index).unwrap_or(here).clone()))
}

fn interface(index: Option<u32>) -> Result<Option<Link>, ClientError> {
    Ok(links()?.into_iter().find(|link| Some(link.index) == index))
}

fn same_family(from: IpAddr, to: IpAddr) -> Result<(), ClientError> {
    match from.is_ipv4() == to.is_ipv4() {
        true => Ok(()),
        false => Err(ClientError::OtherFamily { from, to }),
    }
}

/// Returns the source address that the kernel chooses for a destination.
fn source_for(to: IpAddr) -> Result<IpAddr, String> {
    match route_to(RouteQuery::to(to)) {
        Ok(RouteAnswer::Route(route)) => route.source.ok_or_else(|| "no source address".to_owned()),
        Ok(RouteAnswer::Refused(errno)) => Err(errno.desc().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the path of a network namespace by process ID, name of `ip netns`, or path.
fn namespace_path(namespace: &Path) -> PathBuf {
    match namespace.to_str() {
        Some(text) if text.parse::<u32>().is_ok() => PathBuf::from(format!("/proc/{text}/ns/net")),
        Some(text) if !text.contains('/') => Path::new("/run/netns").join(text),
        _ => namespace.to_owned(),
    }
}

/// Runs `then` in a thread inside the network namespace.
///
/// # Errors
/// [`ClientError::Namespace`] if it cannot be entered.
pub(super) fn within<T: Send>(
    path: &Path,
    then: impl FnOnce() -> T + Send,
) -> Result<T, ClientError> {
    let failed = |source| ClientError::Namespace { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let run = || {
        setns(file, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)?;
        Ok(then())
    };
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    match result {
        Ok(result) => result.map_err(failed),
        Err(panic) => std::panic::resume_unwind(panic),
    }
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
            origin: if from.is_some() { Origin::Interface(None) } else { Origin::Node },
            namespace: None,
        }
    }
}
