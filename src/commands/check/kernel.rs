//! The kernel: nf_tables, the features that shunt's rules need, owned tables, connection tracking,
//! IPv6.

use std::fmt::Display;
use std::fs;

use nfnetlink::nft::{Error, Kernel, Socket};
use nix::errno::Errno;
use shunt_core::model::Family;

use super::{Facts, Judgement, fail, ok, warn};
use crate::agent::health::families;
use crate::dataplane::{self, Abilities, MissingFeature, missing_features};
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

pub(super) fn nf_tables(_: &Facts<'_>) -> Judgement {
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

pub(super) fn features(facts: &Facts<'_>) -> Judgement {
    let mut kernel = kernel()?;
    // If the kernel cannot be asked, the next question says so.
    let has_ipv6 = Abilities::ask(&mut kernel).map_or(true, |it| it.ipv6);
    let mut missing = Vec::new();
    for family in Family::ALL.into_iter().filter(|family| *family == Family::V4 || has_ipv6) {
        let of_family = missing_features(&mut kernel, &facts.node_context, family);
        missing.extend(of_family.map_err(unasked)?);
    }
    if missing.is_empty() {
        let known = dataplane::features().collect::<Vec<_>>().join(", ");
        let families = if has_ipv6 { "IPv4 and IPv6" } else { "IPv4" };
        return ok(format!("the kernel accepts all rules for {families}: {known}"));
    }
    lacks(&missing)
}

fn lacks(missing: &[MissingFeature]) -> Judgement {
    let text = missing.iter().map(|it| format!("{}: {}", it.feature, it.reason));
    let mut options: Vec<&str> = missing.iter().map(|it| it.option).collect();
    options.dedup();
    let remedy = format!("use a kernel with {}", options.join(", "));
    let text = format!("missing: {}", text.collect::<Vec<_>>().join("; "));
    if missing.iter().all(|it| it.is_optional) {
        let effect =
            "a client whose endpoint does not answer may try the same endpoint for two minutes";
        return warn(format!("{text}; {effect}"), remedy);
    }
    fail(text, remedy)
}

pub(super) fn table_ownership(facts: &Facts<'_>) -> Judgement {
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

pub(super) fn connection_tracking(_: &Facts<'_>) -> Judgement {
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

pub(super) fn ipv6(_: &Facts<'_>) -> Judgement {
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
    use super::super::Outcome::{self, Fail, Warn};
    use super::*;

    fn result(judgement: &Judgement) -> Option<Outcome> {
        judgement.as_ref().ok().map(|finding| finding.result)
    }

    #[test]
    fn missing_features_fail_by_name_unless_shunt_can_do_without() {
        let mut missing = MissingFeature {
            feature: "numgen (ip)".to_owned(),
            option: "CONFIG_NFT_NUMGEN",
            reason: "No such file or directory".to_owned(),
            is_optional: false,
        };
        let text = "missing: numgen (ip): No such file or directory";
        assert_eq!(
            lacks(std::slice::from_ref(&missing)),
            fail(text, "use a kernel with CONFIG_NFT_NUMGEN")
        );
        missing.is_optional = true;
        assert_eq!(result(&lacks(&[missing])), Some(Warn));
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
