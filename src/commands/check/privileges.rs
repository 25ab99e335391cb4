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

/// What this process may do, and where it is.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// CAP_NET_ADMIN is in the effective set.
    has_net_admin: bool,
    /// nf_tables answers, for which it asks for CAP_NET_ADMIN over the network namespace.
    is_permitted: bool,
    is_first_user_namespace: bool,
    wmem_max: Option<u64>,
    is_first_network_namespace: bool,
    links: Result<Vec<Link>, String>,
}

impl Facts {
    pub(super) fn gather(links: Result<Vec<Link>, String>) -> Facts {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Facts {
            has_net_admin: has_capability(&read("/proc/thread-self/status"), CAP_NET_ADMIN),
            is_permitted: super::kernel::is_permitted(),
            is_first_user_namespace: read("/proc/thread-self/uid_map").contains(ALL_USERS),
            wmem_max: read("/proc/sys/net/core/wmem_max").trim().parse().ok(),
            is_first_network_namespace: Path::new(OF_FIRST_NAMESPACE).exists(),
            links,
        }
    }
}

fn has_capability(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << bit) != 0)
}

pub(super) fn judge(facts: &Facts) -> [Line; 3] {
    [capabilities(facts), user_namespace(facts), network_namespace(facts)]
}

fn capabilities(facts: &Facts) -> Line {
    const NAME: &str = "capabilities";
    match (facts.has_net_admin, facts.is_permitted) {
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

fn user_namespace(facts: &Facts) -> Line {
    const NAME: &str = "user-namespace";
    if facts.is_first_user_namespace {
        return Line::ok(NAME, "the machine's first");
    }
    let limit = facts.wmem_max.map_or_else(String::new, |bytes| format!(" ({bytes} bytes)"));
    Line::warn(
        NAME,
        format!(
            "not the machine's first: net.core.wmem_max{limit} limits the size of a transaction, \
             and some sysctls of connection tracking cannot be set"
        ),
        "raise net.core.wmem_max on the machine; 10 000 Services with 10 endpoints each take 5 MB",
    )
}

fn network_namespace(facts: &Facts) -> Line {
    const NAME: &str = "network-namespace";
    if facts.is_first_network_namespace {
        return Line::ok(NAME, "the machine's first");
    }
    let links = match &facts.links {
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
    use super::super::{Outcome, link};
    use super::*;

    fn node() -> Facts {
        Facts {
            has_net_admin: true,
            is_permitted: true,
            is_first_user_namespace: true,
            wmem_max: Some(212_992),
            is_first_network_namespace: true,
            links: Ok(Vec::new()),
        }
    }

    fn results(facts: &Facts) -> [Outcome; 3] {
        judge(facts).map(|line| line.result)
    }

    #[test]
    fn missing_capability_fails() {
        use Outcome::{Fail, Ok, Warn};
        assert_eq!(results(&node()), [Ok, Ok, Ok]);
        assert_eq!(results(&Facts { has_net_admin: false, ..node() }), [Fail, Ok, Ok]);
        assert_eq!(results(&Facts { is_permitted: false, ..node() }), [Fail, Ok, Ok]);
        let facts = Facts { is_first_user_namespace: false, ..node() };
        assert_eq!(results(&facts), [Ok, Warn, Ok]);
        assert!(judge(&facts)[1].text.contains("212992 bytes"));
    }

    #[test]
    fn namespace_of_a_pod_is_suspected_by_its_only_veth() {
        let veth = |name| Link { peer_namespace: Some(1), ..link(2, name, "veth") };
        let (lo, eth0) = (link(1, "lo", ""), veth("eth0"));
        let result = |links: &[&Link]| {
            let links = Ok(links.iter().map(|link| (*link).clone()).collect());
            results(&Facts { is_first_network_namespace: false, links, ..node() })[2]
        };
        assert_eq!(result(&[&lo, &eth0]), Outcome::Warn);
        assert_eq!(result(&[&lo, &eth0, &veth("veth1")]), Outcome::Ok);
        assert_eq!(result(&[&lo, &link(2, "eth0", "")]), Outcome::Ok);
        assert_eq!(result(&[&lo]), Outcome::Ok);
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "CapPrm:\t0000000000001000\nCapEff:\t0000000000001000\n";
        assert!(has_capability(status, CAP_NET_ADMIN));
        assert!(!has_capability(status, 21));
        assert!(!has_capability("CapEff:\tx\n", CAP_NET_ADMIN));
        assert!(!has_capability("", CAP_NET_ADMIN));
    }
}
