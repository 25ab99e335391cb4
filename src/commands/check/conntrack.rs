//! Connection tracking: its sysctls compared with kube-proxy's values, and the size of its table.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Judgement, NodeFacts, ok, warn};
use crate::flows::sysctl::{self, ConntrackSettings, Preview};

/// A table that is this full, in percent, may overflow soon: the kernel drops new connections then.
const NEARLY_FULL: u64 = 80;

pub(super) fn sysctls(facts: &NodeFacts<'_>) -> Judgement {
    judge(&sysctl::preview(&facts.effective.as_ref()?.config.conntrack, &facts.run.net_sysctls))
}

fn judge(previews: &[Preview]) -> Judgement {
    let (mut writes, mut failures, mut remedies) = (Vec::new(), Vec::new(), BTreeSet::new());
    for Preview { file, current, value, writable } in previews {
        let now = current.map_or_else(|| "unknown".to_owned(), |now| now.to_string());
        let write = format!("{} = {value} (now {now})", sysctl_name(file));
        match writable {
            Ok(()) => writes.push(write),
            Err(error) => {
                remedies.extend(sysctl::remedy(error));
                failures.push(format!("{write}: {error}"));
            }
        }
    }
    let writes = match writes.is_empty() {
        true => "shunt has nothing to set".to_owned(),
        false => format!("shunt will set {}", writes.join(", ")),
    };
    if failures.is_empty() {
        return ok(writes);
    }
    let remedies: String = remedies.into_iter().map(|remedy| format!("{remedy}; or ")).collect();
    warn(
        format!("shunt cannot set {}", failures.join(", ")),
        format!("{remedies}set 0 in the configuration's conntrack section to leave them alone"),
    )
}

/// Returns the name of the sysctl in this file.
fn sysctl_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("net.netfilter.{name}")
}

pub(super) fn table(facts: &NodeFacts<'_>) -> Judgement {
    let (conntrack, net) = (&facts.effective.as_ref()?.config.conntrack, &facts.run.net_sysctls);
    let read = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(net.join("netfilter").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let Some((count, max @ 1..)) = read("nf_conntrack_count").zip(read("nf_conntrack_max")) else {
        return Err("cannot read nf_conntrack_max and nf_conntrack_count".into());
    };
    let raised = |settings: &ConntrackSettings| {
        let mut writes = sysctl::preview(settings, net).into_iter();
        writes.find(|write| write.file.ends_with("nf_conntrack_max")).map(|write| write.value)
    };
    // kube-proxy's default limit, if it is higher and the configuration leaves the limit alone.
    let default = ConntrackSettings { max_per_core: 32_768, min: 131_072, ..*conntrack };
    let below_default = raised(&default).filter(|_| raised(conntrack).is_none());
    let percent = count.saturating_mul(100) / max;
    let text = format!("{count} of {max} entries ({percent} %)");
    match below_default {
        _ if percent >= NEARLY_FULL => warn(
            format!("{text}: the kernel drops new connections when the table is full"),
            "raise conntrack.maxPerCore or conntrack.min in the configuration, or \
             net.netfilter.nf_conntrack_max",
        ),
        Some(default) => warn(
            format!("{text}; kube-proxy's defaults would raise the limit to {default}"),
            "set conntrack.maxPerCore and conntrack.min, or raise net.netfilter.nf_conntrack_max",
        ),
        None => ok(text),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::CheckOutcome::Warn;
    use super::*;

    fn write(name: &str, value: u64, writable: io::Result<()>) -> Preview {
        let file = Path::new("/proc/sys/net/netfilter").join(name);
        Preview { file, current: Some(1), value, writable }
    }

    #[test]
    fn sysctl_that_cannot_be_written_is_a_warning() {
        assert_eq!(judge(&[]), ok("shunt has nothing to set"));
        let max = || write("nf_conntrack_max", 131_072, Ok(()));
        let text = "shunt will set net.netfilter.nf_conntrack_max = 131072 (now 1)";
        assert_eq!(judge(&[max()]), ok(text));
        let error = io::Error::from_raw_os_error(libc::EROFS);
        let refused = [max(), write("nf_conntrack_buckets", 2, Err(error))];
        let line = judge(&refused).expect("a finding");
        assert_eq!(line.result, Warn);
        assert!(line.text.starts_with("shunt cannot set net.netfilter.nf_conntrack_buckets = 2"));
        assert!(line.remedy.is_some_and(|remedy| remedy.contains("--net-sysctls")));
    }
}
