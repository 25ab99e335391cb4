//! The kernel: nf_tables, the features that shunt's rules need, owned tables, connection tracking,
//! IPv6.

use nfnetlink::nft::{Error, Kernel, Socket};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::NodeContext;

use super::Line;
use crate::dataplane::{MissingFeature, features, has_ipv6, has_owned_tables, missing_features};
use crate::flows::Conntrack;

/// The answers of the kernel.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The release, such as `6.12.48-amd64`.
    release: String,
    /// `/proc/version`. The release of a distribution may be older than its kernel.
    version: String,
    nf_tables: NfTables,
    families: Vec<Family>,
    /// The value of `--own-tables`.
    own_tables: bool,
}

#[derive(Debug, Clone)]
enum NfTables {
    /// CAP_NET_ADMIN is missing.
    Forbidden,
    Absent(String),
    Present {
        /// False without `CONFIG_NF_TABLES_IPV6`.
        has_ipv6: bool,
        /// The features of the families that it has.
        missing: Result<Vec<MissingFeature>, String>,
        has_owned_tables: Result<bool, String>,
        conntrack: Result<(), String>,
    },
}

impl Facts {
    pub(super) fn gather(
        node_context: &NodeContext,
        families: Vec<Family>,
        own_tables: bool,
    ) -> Facts {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let nf_tables = NfTables::gather(node_context);
        let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
        Facts { release: release.trim().to_owned(), version, nf_tables, families, own_tables }
    }
}

impl NfTables {
    fn gather(node_context: &NodeContext) -> NfTables {
        let mut kernel = match connect() {
            Ok(kernel) => kernel,
            Err(Error::Request { errno: Errno::EPERM | Errno::EACCES, .. }) => {
                return NfTables::Forbidden;
            }
            Err(error) => return NfTables::Absent(error.to_string()),
        };
        // If the kernel cannot be asked, the next question says so.
        let has_ipv6 = has_ipv6(&mut kernel).unwrap_or(true);
        let mut missing = |family| missing_features(&mut kernel, node_context, family);
        let families = Family::ALL.into_iter().filter(|family| *family == Family::V4 || has_ipv6);
        let missing = families.into_iter().try_fold(Vec::new(), |mut all, family| {
            all.extend(missing(family)?);
            Ok(all)
        });
        NfTables::Present {
            has_ipv6,
            missing: missing.map_err(|error: Error| error.to_string()),
            has_owned_tables: has_owned_tables(&mut kernel).map_err(|error| error.to_string()),
            conntrack: Conntrack::open()
                .and_then(|mut conntrack| conntrack.load())
                .map_err(|error| error.to_string()),
        }
    }
}

/// Opens a socket to nf_tables that answers.
fn connect() -> Result<Socket, Error> {
    let mut kernel = Socket::open()?;
    kernel.generation()?;
    Ok(kernel)
}

/// Returns false if nf_tables lets this process do nothing.
pub(super) fn is_permitted() -> bool {
    !matches!(connect(), Err(Error::Request { errno: Errno::EPERM | Errno::EACCES, .. }))
}

pub(super) fn judge(facts: &Facts) -> Vec<Line> {
    const NEEDS: &str = "asking needs CAP_NET_ADMIN";
    let mut lines = match &facts.nf_tables {
        NfTables::Forbidden => {
            NAMES.into_iter().map(|name| Line::skip(name, NEEDS)).collect::<Vec<_>>()
        }
        NfTables::Absent(error) => {
            let [nf_tables, others @ ..] = NAMES;
            let text = format!("Linux {} has none: {error}", facts.release);
            let remedy = "load the module nf_tables, or use a kernel with CONFIG_NF_TABLES";
            let others = others.map(|name| Line::skip(name, "nf_tables does not answer"));
            [Line::fail(nf_tables, text, remedy)].into_iter().chain(others).collect()
        }
        NfTables::Present { has_ipv6, missing, has_owned_tables, conntrack } => {
            let [nf_tables, ..] = NAMES;
            vec![
                Line::ok(
                    nf_tables,
                    match freed_early_before(&facts.version) {
                        None => format!("answers (Linux {})", facts.release),
                        Some(fixed) => format!(
                            "answers (Linux {}, which may lack the fix of CVE-2026-31665, in Linux \
                             {fixed}: drain the node before shunt cleanup, or an update that \
                             replaces the tables)",
                            facts.release
                        ),
                    },
                ),
                kernel_features(missing, *has_ipv6),
                table_ownership(facts.own_tables, has_owned_tables),
                connection_tracking(conntrack),
            ]
        }
    };
    lines.push(ipv6(facts));
    lines
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

/// The names of the lines that need nf_tables.
const NAMES: [&str; 4] = ["nf-tables", "kernel-features", "table-ownership", "connection-tracking"];

fn kernel_features(missing: &Result<Vec<MissingFeature>, String>, has_ipv6: bool) -> Line {
    let [_, name, ..] = NAMES;
    match missing.as_deref() {
        Ok([]) => {
            let known = features().collect::<Vec<_>>().join(", ");
            let families = if has_ipv6 { "IPv4 and IPv6" } else { "IPv4" };
            Line::ok(name, format!("the kernel accepts all rules, for {families}: {known}"))
        }
        Ok(missing) => {
            let text = missing.iter().map(|it| format!("{}: {}", it.feature, it.reason));
            let mut options: Vec<&str> = missing.iter().map(|it| it.option).collect();
            options.dedup();
            let remedy = format!("use a kernel with {}", options.join(", "));
            let text = format!("missing: {}", text.collect::<Vec<_>>().join("; "));
            if missing.iter().all(|it| it.is_optional) {
                let effect = "a client whose endpoint does not answer may try the same endpoint for \
                              two minutes";
                return Line::warn(name, format!("{text}; {effect}"), remedy);
            }
            Line::fail(name, text, remedy)
        }
        Err(error) => Line::skip(name, format!("the kernel cannot be asked: {error}")),
    }
}

fn table_ownership(wanted: bool, supported: &Result<bool, String>) -> Line {
    let [_, _, name, _] = NAMES;
    match supported {
        _ if !wanted => Line::ok(name, "shared tables, by --own-tables=false"),
        Ok(true) => Line::ok(name, "no other process can modify the tables of a running agent"),
        Ok(false) => Line::ok(
            name,
            "this kernel cannot protect tables (Linux 6.9 can): every second \
             (--drift-check-period) the agent checks for changes by other processes, and repairs \
             them",
        ),
        Err(error) => Line::skip(name, format!("the kernel cannot be asked: {error}")),
    }
}

fn connection_tracking(conntrack: &Result<(), String>) -> Line {
    let [.., name] = NAMES;
    match conntrack {
        Ok(()) => Line::ok(name, "the kernel lists and deletes entries"),
        Err(error) => Line::warn(
            name,
            format!("the kernel does not list its entries: {error}"),
            "load the module nf_conntrack_netlink, or use a kernel with CONFIG_NF_CT_NETLINK; \
             without it, UDP clients keep a deleted endpoint until their entry expires",
        ),
    }
}

fn ipv6(facts: &Facts) -> Line {
    const NAME: &str = "ipv6";
    let lacks_tables = matches!(facts.nf_tables, NfTables::Present { has_ipv6: false, .. });
    match facts.families.contains(&Family::V6) {
        true if lacks_tables => Line::warn(
            NAME,
            "the node has it, but its nf_tables does not; Services are reachable by IPv4 only",
            "use a kernel with CONFIG_NF_TABLES_IPV6",
        ),
        true => Line::ok(NAME, "present"),
        false => Line::ok(
            NAME,
            "none: the kernel was built or booted without it, or net.ipv6.conf.all.disable_ipv6 is \
             1; Services are reachable by IPv4 only",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome::{self, Fail, Ok as Good, Skip, Warn};
    use super::*;

    fn present(missing: Vec<MissingFeature>, owned: bool, conntrack: Result<(), String>) -> Facts {
        let nf_tables = NfTables::Present {
            has_ipv6: true,
            missing: Ok(missing),
            has_owned_tables: Ok(owned),
            conntrack,
        };
        facts(nf_tables)
    }

    fn facts(nf_tables: NfTables) -> Facts {
        let families = Family::ALL.into();
        let (release, version) = ("6.1.0".to_owned(), String::new());
        Facts { release, version, nf_tables, families, own_tables: true }
    }

    fn results(facts: &Facts) -> Vec<Outcome> {
        judge(facts).into_iter().map(|line| line.result).collect()
    }

    #[test]
    fn missing_features_fail_by_name() {
        let numgen = MissingFeature {
            feature: "numgen (ip)".to_owned(),
            option: "CONFIG_NFT_NUMGEN",
            reason: "No such file or directory".to_owned(),
            is_optional: false,
        };
        let lines = judge(&present(vec![numgen], true, Ok(())));
        assert_eq!((lines[1].name, lines[1].result), ("kernel-features", Fail));
        assert_eq!(lines[1].text, "missing: numgen (ip): No such file or directory");
        assert_eq!(lines[1].remedy.as_deref(), Some("use a kernel with CONFIG_NFT_NUMGEN"));
        assert_eq!(results(&present(Vec::new(), true, Ok(()))), [Good; 5]);
    }

    #[test]
    fn feature_that_shunt_can_do_without_does_not_fail() {
        let timeouts = MissingFeature {
            feature: "ct timeout (ip)".to_owned(),
            option: "CONFIG_NF_CONNTRACK_TIMEOUT",
            reason: "No such file or directory".to_owned(),
            is_optional: true,
        };
        assert_eq!(results(&present(vec![timeouts], true, Ok(())))[1], Warn);
        let facts = present(Vec::new(), false, Err("Invalid argument".to_owned()));
        assert_eq!(results(&facts), [Good, Good, Good, Warn, Good]);
        assert!(judge(&facts)[2].text.contains("Linux 6.9"));
        let shared = Facts { own_tables: false, ..facts };
        assert!(judge(&shared)[2].text.contains("--own-tables=false"));
        let v4 = Facts { families: vec![Family::V4], ..present(Vec::new(), true, Ok(())) };
        assert_eq!(results(&v4), [Good; 5]);
        assert!(judge(&v4)[4].text.contains("by IPv4 only"));
        let mut no_tables = present(Vec::new(), true, Ok(()));
        if let NfTables::Present { has_ipv6, .. } = &mut no_tables.nf_tables {
            *has_ipv6 = false;
        }
        assert_eq!(results(&no_tables), [Good, Good, Good, Good, Warn]);
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
        let old = Facts {
            version: "Linux version 6.1.100 #1".to_owned(),
            ..present(Vec::new(), true, Ok(()))
        };
        assert!(judge(&old)[0].text.contains("CVE-2026-31665, in Linux 6.1.169"));
    }

    #[test]
    fn nothing_is_judged_without_nf_tables() {
        let absent = facts(NfTables::Absent("EINVAL".to_owned()));
        assert_eq!(results(&absent), [Fail, Skip, Skip, Skip, Good]);
        assert_eq!(results(&facts(NfTables::Forbidden)), [Skip, Skip, Skip, Skip, Good]);
    }
}
