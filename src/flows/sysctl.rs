//! The sysctls of the `conntrack` section of the configuration, set like kube-proxy does.
//!
//! From kube-proxy 1.36 (`pkg/proxy/conntrack/sysctls.go`): the size of the table follows the CPUs
//! and only grows, and so do the hash buckets, to a quarter of it. Other values are written if they
//! differ, in either direction. Zero in the configuration leaves a value alone. Unlike in
//! kube-proxy, a value that cannot be written does not end the process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shunt_core::plan::TcpTimeouts;
use tracing::{debug, info, warn};

/// The upper bound of the table's size by CPUs. `min` may exceed it only on a machine with few
/// CPUs.
const LARGEST_SCALED_TABLE: u64 = 1 << 20;

/// The `conntrack` section. The defaults are kube-proxy's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// `maxPerCore`: maximum entries of the table per CPU. 0 leaves the size alone.
    pub max_per_core: u32,
    /// `min`: lower bound for the size of the table.
    pub min: u32,
    /// `tcpEstablishedTimeout`. Zero leaves the value alone, like for all durations.
    pub tcp_established_timeout: Duration,
    /// `tcpCloseWaitTimeout`.
    pub tcp_close_wait_timeout: Duration,
    /// `tcpBeLiberal`: packets outside of the window do not count as invalid. False leaves the
    /// value alone.
    pub tcp_be_liberal: bool,
    /// `udpTimeout`: for flows without an answer.
    pub udp_timeout: Duration,
    /// `udpStreamTimeout`: for flows with answers.
    pub udp_stream_timeout: Duration,
}

/// A sysctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each has the name of its file")]
pub enum Sysctl {
    Max,
    Buckets,
    TcpTimeoutEstablished,
    TcpTimeoutCloseWait,
    TcpBeLiberal,
    UdpTimeout,
    UdpTimeoutStream,
}

impl Sysctl {
    /// Returns the file. A file below `/proc/sys/net` belongs to the network namespace of the
    /// thread that opens it, wherever that directory is mounted. CAP_NET_ADMIN in the owning user
    /// namespace permits writes (`net_ctl_permissions`). The first two exist once for the machine:
    /// they are read-only except in the initial namespace (`nf_conntrack_standalone_init_sysctl`).
    #[must_use]
    pub fn file(self, net: &Path) -> PathBuf {
        net.join("netfilter").join(match self {
            Sysctl::Max => "nf_conntrack_max",
            // The same value as /sys/module/nf_conntrack/parameters/hashsize, which only privileged
            // containers may write.
            Sysctl::Buckets => "nf_conntrack_buckets",
            Sysctl::TcpTimeoutEstablished => "nf_conntrack_tcp_timeout_established",
            Sysctl::TcpTimeoutCloseWait => "nf_conntrack_tcp_timeout_close_wait",
            Sysctl::TcpBeLiberal => "nf_conntrack_tcp_be_liberal",
            Sysctl::UdpTimeout => "nf_conntrack_udp_timeout",
            Sysctl::UdpTimeoutStream => "nf_conntrack_udp_timeout_stream",
        })
    }

    fn read(self, net: &Path) -> Option<u64> {
        fs::read_to_string(self.file(net)).ok()?.trim().parse().ok()
    }
}

/// Returns the values to write on a machine with this number of CPUs. `current` returns a current
/// value, or `None` for an unreadable one: it is written, too, so that the error gives the reason.
fn plan(
    settings: &ConntrackSettings,
    cpus: u64,
    current: impl Fn(Sysctl) -> Option<u64>,
) -> Vec<(Sysctl, u64)> {
    let max = table_size(settings, cpus);
    let raised = [(Sysctl::Max, max), (Sysctl::Buckets, max / 4)];
    let exact = [
        (Sysctl::TcpTimeoutEstablished, settings.tcp_established_timeout.as_secs()),
        (Sysctl::TcpTimeoutCloseWait, settings.tcp_close_wait_timeout.as_secs()),
        (Sysctl::TcpBeLiberal, u64::from(settings.tcp_be_liberal)),
        (Sysctl::UdpTimeout, settings.udp_timeout.as_secs()),
        (Sysctl::UdpTimeoutStream, settings.udp_stream_timeout.as_secs()),
    ];
    let raised = raised.into_iter().filter(|(s, value)| current(*s).is_none_or(|now| now < *value));
    let exact = exact.into_iter().filter(|(s, value)| current(*s) != Some(*value));
    raised.chain(exact).filter(|(_, value)| *value != 0).collect()
}

/// Returns the size of the table; 0 to leave it alone.
fn table_size(settings: &ConntrackSettings, cpus: u64) -> u64 {
    match u64::from(settings.max_per_core) * cpus {
        0 => 0,
        scaled if scaled > LARGEST_SCALED_TABLE => LARGEST_SCALED_TABLE,
        scaled => scaled.max(settings.min.into()),
    }
}

/// Writes the configured values in the network namespace of this thread, and logs the failures.
/// Connection tracking must be loaded, which the first commit ensures.
///
/// `net` is the directory `/proc/sys/net`, or its mount point in a container.
pub fn apply(settings: &ConntrackSettings, net: &Path) {
    let mut failures = Vec::new();
    let mut remedies = BTreeSet::new();
    for (sysctl, value) in plan(settings, online_cpus(), |sysctl| sysctl.read(net)) {
        let file = sysctl.file(net);
        let write = format!("{} = {value}", file.display());
        match fs::write(file, value.to_string()) {
            Ok(()) => info!("set {write}"),
            Err(error) => {
                debug!(%error, kind = ?error.kind(), "cannot set {write}");
                remedies.extend(remedy(&error));
                failures.push(format!("{write}: {error}"));
            }
        }
    }
    if !failures.is_empty() {
        let remedies: String =
            remedies.into_iter().map(|remedy| format!("{remedy}, or ")).collect();
        warn!(
            "cannot set conntrack sysctls: {}; they keep their values; {remedies}set 0 in the \
             configuration's conntrack section to leave them alone",
            failures.join("; ")
        );
    }
}

/// Returns the timeouts of TCP connections to Services: those of the configuration and, where it
/// leaves a value alone, those of the sysctls, by the ends of their names.
#[must_use]
pub fn tcp_timeouts(
    settings: &ConntrackSettings,
    sysctl: impl Fn(&str) -> Option<u32>,
) -> TcpTimeouts {
    let configured = |timeout: Duration| u32::try_from(timeout.as_secs()).ok().filter(|it| *it > 0);
    TcpTimeouts::with(|state| match state {
        "established" => configured(settings.tcp_established_timeout).or_else(|| sysctl(state)),
        "close_wait" => configured(settings.tcp_close_wait_timeout).or_else(|| sysctl(state)),
        "retrans" => sysctl("max_retrans"),
        "unack" => sysctl("unacknowledged"),
        state => sysctl(state),
    })
}

/// Returns a sysctl of [`tcp_timeouts`] in the network namespace of this thread.
#[must_use]
pub fn tcp_timeout(name: &str) -> Option<u32> {
    let file = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{name}");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A value that [`apply`] would write.
#[derive(Debug)]
pub struct Preview {
    /// The file.
    pub file: PathBuf,
    /// The current value, if it is readable.
    pub current: Option<u64>,
    /// The new value.
    pub value: u64,
    /// Whether this process may write the file.
    pub writable: io::Result<()>,
}

/// Returns the values that [`apply`] would write, without a change.
#[must_use]
pub fn preview(settings: &ConntrackSettings, net: &Path) -> Vec<Preview> {
    let writes = plan(settings, online_cpus(), |sysctl| sysctl.read(net)).into_iter();
    let preview = |(sysctl, value): (Sysctl, u64)| {
        let file = sysctl.file(net);
        // Opening it for writing changes nothing.
        let writable = fs::OpenOptions::new().write(true).open(&file).map(drop);
        Preview { file, current: sysctl.read(net), value, writable }
    };
    writes.map(preview).collect()
}

/// Returns the remedy for an error.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EROFS => Some(
            "mount the node's /proc/sys/net into the container and name that directory with \
             --net-sysctls, or run `shunt run --init-only` in a privileged init container",
        ),
        libc::EACCES | libc::EPERM => Some(
            "set them in the initial network namespace, with CAP_NET_ADMIN, for example in \
             /etc/sysctl.d",
        ),
        libc::ENOENT => Some("load the module nf_conntrack"),
        _ => None,
    }
}

/// Returns the number of CPUs of the machine, also those outside of the agent's CPU set: the table
/// serves the machine.
fn online_cpus() -> u64 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online");
    let count = online.ok().and_then(|list| count_cpus(list.trim()));
    count.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64))
}

/// Counts the CPUs in a list such as `0-3,8` (Documentation/admin-guide/cputopology.rst).
fn count_cpus(list: &str) -> Option<u64> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: ConntrackSettings = ConntrackSettings {
        max_per_core: 0,
        min: 0,
        tcp_established_timeout: Duration::ZERO,
        tcp_close_wait_timeout: Duration::ZERO,
        tcp_be_liberal: false,
        udp_timeout: Duration::ZERO,
        udp_stream_timeout: Duration::ZERO,
    };

    fn planned(
        settings: &ConntrackSettings,
        cpus: u64,
        current: &[(Sysctl, u64)],
    ) -> Vec<(Sysctl, u64)> {
        let read =
            |sysctl| current.iter().find(|(known, _)| *known == sysctl).map(|(_, value)| *value);
        plan(settings, cpus, read)
    }

    #[test]
    fn the_size_of_the_table_follows_the_cpus() {
        for (max_per_core, min, cpus, max) in [
            (32_768, 131_072, 2, 131_072),
            (32_768, 131_072, 4, 131_072),
            (32_768, 131_072, 8, 262_144),
            (32_768, 131_072, 32, 1_048_576),
            (32_768, 131_072, 256, 1_048_576),
            (u32::MAX, 131_072, 256, 1_048_576),
            (32_768, 0, 1, 32_768),
            (32_768, 2_000_000, 2, 2_000_000),
            (32_768, 2_000_000, 64, 1_048_576),
            (0, 131_072, 8, 0),
        ] {
            let settings = ConntrackSettings { max_per_core, min, ..NOTHING };
            assert_eq!(table_size(&settings, cpus), max, "{max_per_core} {min} {cpus}");
        }
    }

    #[test]
    fn table_and_buckets_are_only_raised() {
        use Sysctl::{Buckets, Max};
        let settings = ConntrackSettings { max_per_core: 32_768, ..NOTHING };
        for (max, buckets, writes) in [
            (65_536, 16_384, &[(Max, 131_072), (Buckets, 32_768)][..]),
            (262_144, 16_384, &[(Buckets, 32_768)]),
            (131_072, 32_768, &[]),
            (262_144, 262_144, &[]),
            (65_536, 32_768, &[(Max, 131_072)]),
        ] {
            let current = [(Max, max), (Buckets, buckets)];
            assert_eq!(planned(&settings, 4, &current), writes, "{max} {buckets}");
        }
        assert_eq!(planned(&settings, 4, &[]), [(Max, 131_072), (Buckets, 32_768)]);
    }

    #[test]
    fn other_values_are_written_where_they_differ() {
        use Sysctl::*;
        let settings = ConntrackSettings {
            tcp_established_timeout: Duration::from_secs(86_400),
            tcp_close_wait_timeout: Duration::from_millis(3_600_900),
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(10),
            udp_stream_timeout: Duration::from_secs(100),
            ..NOTHING
        };
        let kernel = [
            (TcpTimeoutEstablished, 432_000),
            (TcpTimeoutCloseWait, 60),
            (TcpBeLiberal, 0),
            (UdpTimeout, 30),
            (UdpTimeoutStream, 120),
        ];
        let wanted = [
            (TcpTimeoutEstablished, 86_400),
            (TcpTimeoutCloseWait, 3_600),
            (TcpBeLiberal, 1),
            (UdpTimeout, 10),
            (UdpTimeoutStream, 100),
        ];
        assert_eq!(planned(&settings, 2, &kernel), wanted);
        assert_eq!(planned(&settings, 2, &wanted), []);
        assert_eq!(planned(&NOTHING, 2, &kernel), [], "zero leaves values alone");
        let short = ConntrackSettings { udp_timeout: Duration::from_millis(900), ..NOTHING };
        assert_eq!(planned(&short, 2, &kernel), [], "no flow would last for zero seconds");
    }

    #[test]
    fn cpus_are_counted() {
        for (list, count) in [
            ("0", Some(1)),
            ("0-1", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
            ("0-x", None),
        ] {
            assert_eq!(count_cpus(list), count, "{list}");
        }
    }
}
