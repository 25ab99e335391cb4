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

const FORBIDDEN: &str = "asking needs CAP_NET_ADMIN";

fn kernel() -> Result<Socket, String> {
    connect().map_err(|error| {
        if is_forbidden(&error) { FORBIDDEN } else { "nf_tables does not answer" }.to_owned()
    })
}

fn unasked(error: Error) -> String {
    format!("the kernel cannot be asked: {error}")
}

pub(super) fn nf_tables(_: &Facts<'_>) -> Judgement {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    answer(connect(), read("/proc/sys/kernel/osrelease").trim(), &read("/proc/version"))
}

/// `version` is `/proc/version`. The release of a distribution may be older than its kernel.
fn answer<T>(answer: Result<T, Error>, release: &str, version: &str) -> Judgement {
    match answer {
        Err(error) if is_forbidden(&error) => Err(FORBIDDEN.into()),
        Err(error) => fail(
            format!("Linux {release} has none: {error}"),
            "load the module nf_tables, or use a kernel with CONFIG_NF_TABLES",
        ),
        Ok(_) => ok(match freed_early_before(version) {
            None => format!("answers (Linux {release})"),
            Some(fixed) => format!(
                "answers (Linux {release}, which may lack the fix of CVE-2026-31665, in Linux \
                 {fixed}: drain the node before shunt cleanup, or an update that replaces the tables)"
            ),
        }),
    }
}

/// Returns the version with the fix of CVE-2026-31665 for a kernel that is older: it frees the timeouts
/// of connections too early when their table goes. A distribution may have the fix by itself.
fn freed_early_before(version: &str) -> Option<&'static str> {
    const FIXED: [([u32; 3], &str); 7] = [
        ([5, 10, 253], "5.10.253"),
        ([5, 15, 203], "5.15.203"),
        ([6, 1, 169], "6.1.169"),
        ([6, 6, 135], "6.6.135"),
        ([6, 12, 82], "6.12.82"),
        ([6, 18, 23], "6.18.23"),
        ([6, 19, 13], "6.19.13"),
    ];
    let words = version.split(|c: char| !c.is_ascii_digit() && c != '.');
    let number = |word: &str| {
        let mut parts = word.split('.').map(|part| part.parse().ok());
        Some([parts.next()??, parts.next()??, parts.next()??])
    };
    let (series, _) = version.strip_prefix("Linux version ")?.split_once(['-', ' '])?;
    let [major, minor, _] = number(series).or_else(|| number(&format!("{series}.0")))?;
    // Debian's release 6.1.0 is Linux 6.1.192, which its version says, too.
    let newest = words.filter_map(number).filter(|it| it[..2] == [major, minor]).max()?;
    match FIXED.iter().find(|(fixed, _)| fixed[..2] == [major, minor]) {
        Some((fixed, name)) => (newest < *fixed).then_some(name),
        // Series between these get no fixes.
        None => (newest < [6, 19, 13]).then_some("6.19.13"),
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
        return ok(format!("the kernel accepts all rules, for {families}: {known}"));
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
        return ok("shared tables, by --own-tables=false");
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
            "the node has it, but its nf_tables does not; Services are reachable by IPv4 only",
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
    fn kernels_that_free_timeouts_early_are_named() {
        for (version, fixed) in [
            ("Linux version 6.12.81 (a@b) (gcc 12.2.0) #1 SMP", Some("6.12.82")),
            ("Linux version 6.12.82 (a@b) (gcc 12.2.0) #1 SMP", None),
            (
                "Linux version 6.1.0-56-cloud-amd64 (d@d) (gcc-12 12.2.0-14) #1 Debian 6.1.192-1",
                None,
            ),
            (
                "Linux version 6.1.0-20-amd64 (d@d) (gcc-12 12.2.0-14) #1 Debian 6.1.85-1",
                Some("6.1.169"),
            ),
            ("Linux version 5.14.0-570.el9.x86_64 (m@c) (gcc 11.5.0) #1 SMP", Some("6.19.13")),
            ("Linux version 7.2.13+deb14-cloud-amd64 (d@d) (gcc 15.2.0) #1 Debian 7.2.13-1", None),
            ("", None),
        ] {
            assert_eq!(freed_early_before(version), fixed, "{version}");
        }
        let old = answer(Ok(()), "6.1.0", "Linux version 6.1.100 #1").expect("a finding");
        assert!(old.text.contains("CVE-2026-31665, in Linux 6.1.169"));
    }

    #[test]
    fn only_permission_tells_whether_there_is_nf_tables() {
        let refused = |errno| Err::<(), _>(Error::Request { request: "", errno });
        assert_eq!(answer(refused(Errno::EPERM), "6.1.0", ""), Err(FORBIDDEN.into()));
        assert_eq!(result(&answer(refused(Errno::EINVAL), "6.1.0", "")), Some(Fail));
    }
}
