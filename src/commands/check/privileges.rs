//! Capabilities, user namespace, and whose network namespace this is.

use std::fs;
use std::path::Path;

use nfnetlink::route::Link;

use super::{Judgement, NodeFacts, fail, kernel, ok, warn};

/// A user namespace that maps every user is the machine's first one.
const ALL_USERS: &str = "4294967295";
/// The kernel registers this sysctl in the machine's first network namespace only.
const OF_FIRST_NAMESPACE: &str = "/proc/sys/net/core/netdev_max_backlog";

/// nf_tables asks for the capability over the network namespace.
pub(super) fn capabilities(_: &NodeFacts<'_>) -> Judgement {
    match kernel::connect().is_err_and(|error| kernel::is_forbidden(&error)) {
        true => fail(
            "CAP_NET_ADMIN is missing, or not valid for this network namespace: another user \
             namespace owns it",
            "run as root, or give the container the capability NET_ADMIN; start shunt in the user \
             namespace of the node, for a Pod with hostUsers: true",
        ),
        false => ok("CAP_NET_ADMIN; shunt needs no other"),
    }
}

pub(super) fn user_namespace(_: &NodeFacts<'_>) -> Judgement {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    if read("/proc/thread-self/uid_map").contains(ALL_USERS) {
        return ok("the initial one");
    }
    let limit = match read("/proc/sys/net/core/wmem_max").trim() {
        "" => String::new(),
        bytes => format!(" ({bytes} bytes)"),
    };
    warn(
        format!(
            "not the initial one: net.core.wmem_max{limit} limits the size of a transaction, and \
             shunt cannot set some sysctls of connection tracking"
        ),
        "raise net.core.wmem_max on the machine; 10 000 Services with 10 endpoints each take 5 MB",
    )
}

pub(super) fn network_namespace(facts: &NodeFacts<'_>) -> Judgement {
    if Path::new(OF_FIRST_NAMESPACE).exists() {
        return ok("the initial one");
    }
    let is_veth =
        |link: &&Link| link.kind.as_deref() == Some("veth") && link.peer_namespace.is_some();
    let others: Vec<&Link> = facts.links.as_ref()?.iter().filter(|link| !link.loopback).collect();
    match others.as_slice() {
        [only] if is_veth(only) => warn(
            format!(
                "looks like a pod's: its only interface besides lo is {}, a veth whose other end \
                 is elsewhere",
                only.name
            ),
            "set hostNetwork: true for the Pod; nothing to do if this is a node in a container, as \
             with kind",
        ),
        _ => ok("not the initial one; shunt programs this one"),
    }
}
