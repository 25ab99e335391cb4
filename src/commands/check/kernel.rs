//! The kernel: nf_tables, the features that shunt's rules need, owned tables, connection tracking,
//! IPv6.

use std::fmt::Display;
use std::fs;

use nfnetlink::nft::{Error, Kernel, Refusal, Socket};
use nix::errno::Errno;
use shunt_core::model::Family;

use super::{Judgement, NodeFacts, fail, ok, warn};
use crate::agent::health::families;
use crate::dataplane::{Abilities, refused_rules};
use crate::flows::Conntrack;

/// Opens a socket to nf_tables that answers.
pub(super) fn connect() -> Result<Socket, Error> {
    let mut kernel = Socket::open()?;
    kernel.generation()?;
    Ok(kernel)
}

/// Returns true if nf_tables lets this process do nothing.
pub(super) fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Request { errno: Errno::EPERM | Errno::EACCES, .. })
}

const FORBIDDEN: &str = "this check needs CAP_NET_ADMIN";

fn kernel() -> Result<Socket, String> {
    connect().map_err(|error| {
        if is_forbidden(&error) { FORBIDDEN } else { "nf_tables does not answer" }.to_owned()
    })
}

fn unasked(error: Error) -> String {
    format!("cannot ask the kernel: {error}")
}

pub(super) fn nf_tables(_: &NodeFacts<'_>) -> Judgement {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    answer(connect(), release.trim())
}

fn answer<T>(answer: Result<T, Error>, release: &str) -> Judgement {
    match answer {
        Err(error) if is_forbidden(&error) => Err(FORBIDDEN.into()),
        Err(error) => fail(
            format!("Linux {release} has no nf_tables: {error}"),
            "load the module nf_tables, or use a kernel with CONFIG_NF_TABLES",
        ),
        Ok(_) => ok(format!("answers (Linux {release})")),
    }
}

pub(super) fn features(facts: &NodeFacts<'_>) -> Judgement {
    let mut kernel = kernel()?;
    let abilities = Abilities::ask(&mut kernel).map_err(unasked)?;
    let mut context = facts.node_context.clone();
    context.options.tcp_timeouts = context.options.tcp_timeouts.filter(|_| abilities.timeouts);
    let families = if abilities.ipv6 { &Family::ALL[..] } else { &[Family::V4] };
    let mut refused = Vec::new();
    for family in families {
        refused.extend(refused_rules(&mut kernel, &context, *family).map_err(unasked)?);
    }
    let families = if abilities.ipv6 { "IPv4 and IPv6" } else { "IPv4" };
    judge(&refused, abilities.timeouts, families)
}

fn judge(refused: &[Refusal], has_timeouts: bool, families: &str) -> Judgement {
    match refused {
        [first, others @ ..] => {
            let more = match others.len() {
                0 => String::new(),
                count => format!(", and {count} more"),
            };
            fail(
                format!("the kernel refuses to {first}{more}"),
                "use a kernel of Linux 5.9 or later with CONFIG_NF_TABLES, CONFIG_NFT_NAT, \
                 CONFIG_NFT_MASQ, CONFIG_NFT_NUMGEN, CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6, \
                 CONFIG_NFT_CT, CONFIG_NFT_REJECT and, for hash tables, CONFIG_NFT_HASH",
            )
        }
        [] if !has_timeouts => warn(
            "the kernel has no timeouts per connection: a client whose endpoint does not answer \
             may try the same endpoint for two minutes",
            "use a kernel with CONFIG_NF_CONNTRACK_TIMEOUT",
        ),
        [] => {
            ok(format!("the kernel accepts all rules for {families}: numgen, fib, ct and others"))
        }
    }
}

pub(super) fn table_ownership(facts: &NodeFacts<'_>) -> Judgement {
    let mut kernel = kernel()?;
    if !facts.run.own_tables {
        return ok("--own-tables=false: other processes can modify the tables");
    }
    ok(match Abilities::ask(&mut kernel).map_err(unasked)?.owned_tables {
        true => "no other process can modify the tables of a running agent",
        false => {
            "this kernel cannot protect tables (Linux 6.9 can): every second \
             (--drift-check-period) the agent checks for changes by other processes, and repairs \
             them"
        }
    })
}

pub(super) fn connection_tracking(_: &NodeFacts<'_>) -> Judgement {
    kernel()?;
    lists(Conntrack::open().and_then(|mut conntrack| conntrack.load()))
}

fn lists(answer: Result<(), impl Display>) -> Judgement {
    match answer {
        Ok(()) => ok("the kernel lists and deletes entries"),
        Err(error) => warn(
            format!("the kernel does not list its entries: {error}"),
            "load the module nf_conntrack_netlink, or use a kernel with CONFIG_NF_CT_NETLINK; \
             without it, UDP clients keep a deleted endpoint until their entry expires",
        ),
    }
}

pub(super) fn ipv6(_: &NodeFacts<'_>) -> Judgement {
    let in_tables = connect().and_then(|mut kernel| Abilities::ask(&mut kernel));
    reachable(families().contains(&Family::V6), in_tables.map_or(true, |it| it.ipv6))
}

fn reachable(on_node: bool, in_tables: bool) -> Judgement {
    match (on_node, in_tables) {
        (true, false) => warn(
            "the node has IPv6, but its nf_tables does not; Services are reachable by IPv4 only",
            "use a kernel with CONFIG_NF_TABLES_IPV6",
        ),
        (true, true) => ok("present"),
        (false, _) => ok(
            "none: the kernel was built or booted without it, or net.ipv6.conf.all.disable_ipv6 is \
             1; Services are reachable by IPv4 only",
        ),
    }
}

#[cfg(test)]
mod tests {
    use nfnetlink::nft::{Batch, TableFamily};

    use super::super::CheckOutcome::{self, Fail, Warn};
    use super::*;

    fn result(judgement: &Judgement) -> Option<CheckOutcome> {
        judgement.as_ref().ok().map(|finding| finding.result)
    }

    #[test]
    fn services_work_without_timeouts_but_not_without_rules() {
        let mut batch = Batch::new(None);
        batch.add_table(TableFamily::Ip, "shunt", 0, "");
        let refused = [batch.finish().refusal(1, Errno::EOPNOTSUPP, None)];
        assert_eq!(result(&judge(&refused, true, "IPv4")), Some(Fail));
        assert_eq!(result(&judge(&[], false, "IPv4")), Some(Warn));
    }

    #[test]
    fn services_work_without_listing_of_connections_and_without_ipv6() {
        assert_eq!(result(&lists(Err("Invalid argument"))), Some(Warn));
        assert_eq!(result(&reachable(true, false)), Some(Warn));
    }

    #[test]
    fn only_permission_tells_whether_there_is_nf_tables() {
        let refused = |errno| Err::<(), _>(Error::Request { request: "", errno });
        assert_eq!(answer(refused(Errno::EPERM), "6.1.0"), Err(FORBIDDEN.into()));
        assert_eq!(result(&answer(refused(Errno::EINVAL), "6.1.0")), Some(Fail));
    }
}
