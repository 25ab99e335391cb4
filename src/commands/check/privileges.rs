//! Capabilities, user namespace, and whose network namespace this is.

use std::fs;
use std::path::Path;

use nfnetlink::route::Link;

use super::Line;

/// `CAP_NET_ADMIN`, a bit of `CapEff` in `/proc/self/status`.
const CAP_NET_ADMIN: u32 = 12;
/// A user namespace that maps every user is the machine's first one.
const ALL_USERS: &str = "4294967295";
/// The kernel registers this sysctl in the machine's first network namespace only.
const OF_FIRST_NAMESPACE: &str = "/proc/sys/net/core/netdev_max_backlog";

pub(super) fn check(links: &Result<Vec<Link>, String>) -> [Line; 3] {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let has_net_admin = has_capability(&status, CAP_NET_ADMIN);
    // nf_tables asks for the capability over the network namespace.
    let is_permitted = super::kernel::is_permitted();
    [capabilities(has_net_admin, is_permitted), user_namespace(), network_namespace(links)]
}

fn has_capability(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << bit) != 0)
}

fn capabilities(has_net_admin: bool, is_permitted: bool) -> Line {
    const NAME: &str = "capabilities";
    match (has_net_admin, is_permitted) {
        (false, _) => Line::fail(
            NAME,
            "CAP_NET_ADMIN is missing",
            "run as root, or give the container the capability NET_ADMIN",
        ),
        (true, false) => Line::fail(
            NAME,
            "CAP_NET_ADMIN is not valid for this network namespace: another user namespace owns it",
            "start shunt in the user namespace of the node, for a Pod with hostUsers: true",
        ),
        (true, true) => Line::ok(NAME, "CAP_NET_ADMIN; shunt needs no other"),
    }
}

fn user_namespace() -> Line {
    const NAME: &str = "user-namespace";
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    if read("/proc/thread-self/uid_map").contains(ALL_USERS) {
        return Line::ok(NAME, "the machine's first");
    }
    let limit = match read("/proc/sys/net/core/wmem_max").trim() {
        "" => String::new(),
        bytes => format!(" ({bytes} bytes)"),
    };
    Line::warn(
        NAME,
        format!(
            "not the machine's first: net.core.wmem_max{limit} limits the size of a transaction, \
             and some sysctls of connection tracking cannot be set"
        ),
        "raise net.core.wmem_max on the machine; 10 000 Services with 10 endpoints each take 5 MB",
    )
}

fn network_namespace(links: &Result<Vec<Link>, String>) -> Line {
    const NAME: &str = "network-namespace";
    if Path::new(OF_FIRST_NAMESPACE).exists() {
        return Line::ok(NAME, "the machine's first");
    }
    let links = match links {
        Ok(links) => links,
        Err(error) => return Line::skip(NAME, format!("interfaces cannot be listed: {error}")),
    };
    let is_veth =
        |link: &&Link| link.kind.as_deref() == Some("veth") && link.peer_namespace.is_some();
    let others: Vec<&Link> = links.iter().filter(|link| !link.loopback).collect();
    match others.as_slice() {
        [only] if is_veth(only) => Line::warn(
            NAME,
            format!(
                "looks like that of a pod: its only interface besides lo is {}, a veth whose other \
                 end is elsewhere",
                only.name
            ),
            "set hostNetwork: true for the Pod; nothing to do if this is a node in a container, as \
             with kind",
        ),
        _ => Line::ok(NAME, "not the machine's first; shunt programs this one"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn capability_over_another_network_namespace_fails() {
        assert_eq!(capabilities(true, false).result, Outcome::Fail);
    }
}
