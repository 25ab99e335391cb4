//! One sweep: lists entries, and deletes the stale ones.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use foldhash::{HashSet, HashSetExt as _};
use nfnetlink::conntrack::{self, Entry, Filter};
use nix::errno::Errno;
use shunt_core::model::{Family, Protocol};

use super::{Error, Sweep};

/// Up to this number of ports, each gets a filtered dump: a Service has one, and a node port. Each
/// dump walks the whole hash table (9 ms for 262 144 buckets), a listed entry costs 1.4 µs. With
/// two ports, two dumps are slower below 10 000 UDP flows, by 9 ms at most, and twice as fast with
/// 100 000. With four ports, they are never faster.
const MAX_FILTERED_DUMPS: usize = 2;
/// How long the sweep waits for an answer in flight to a half-open connection. Packets need less
/// time from anywhere in a cluster, and a client without an answer repeats its SYN after a second.
const ON_THE_WAY: Duration = Duration::from_millis(20);

/// The result of a sweep of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The family of the deleted entries.
    pub family: Family,
    /// Number of entries that the kernel listed.
    pub listed: usize,
    /// Number of deleted entries.
    pub deleted: usize,
    /// Number of half-open TCP connections among the deleted entries.
    pub half_open: usize,
    /// Number of stale entries that the kernel did not delete, and its last reason.
    pub refused: Option<(usize, Errno)>,
    /// The duration, without the pause for answers to half-open connections.
    pub took: Duration,
}

impl Report {
    /// Returns what the sweep could not do.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let (count, errno) = self.refused?;
        Some(format!("the kernel refuses to delete {count} {} flows: {errno}", self.family))
    }
}

/// A socket to connection tracking, in the network namespace of the thread that opened it.
pub struct Conntrack(conntrack::Conntrack);

impl Conntrack {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Conntrack, Error> {
        conntrack::Conntrack::open().map(Conntrack)
    }

    /// Sends a request, so that the kernel loads the modules of connection tracking.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn load(&mut self) -> Result<(), Error> {
        self.0.list(nfnetlink::Family::Ip, &[filter(Protocol::Udp, Some(0))], |_| {})
    }

    /// Deletes the stale entries of a family.
    ///
    /// Lists half-open connections to former backends twice: those answered in between stay. So no
    /// client loses a connection to a working backend that was just removed.
    ///
    /// Calls `is_permitted` for each stale entry between its listing and its deletion: a commit after
    /// the start of the sweep may have allowed the flow.
    ///
    /// # Errors
    /// If entries could not be listed. Some entries may have been deleted nevertheless.
    pub fn sweep(
        &mut self,
        family: Family,
        sweep: &Sweep,
        is_permitted: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<Report, Error> {
        let started = Instant::now();
        let (mut listed, mut waited) = (0, Duration::ZERO);
        let mut refused = None;
        let mut refuse = |errno| {
            let (count, _) = refused.unwrap_or((0, errno));
            refused = Some((count + 1, errno));
        };
        let mut unanswered = self.list_stale(family, Protocol::Tcp, sweep, &mut listed)?;
        unanswered.retain(|entry| !is_permitted(entry));
        let unanswered_at = Instant::now();
        let untranslated: HashSet<Entry> =
            unanswered.extract_if(|entry| !entry.is_translated()).collect();
        let mut half_open = self.0.delete(&untranslated, &mut refuse)?;
        let mut stale = self.list_stale(family, Protocol::Udp, sweep, &mut listed)?;
        stale.retain(|entry| !is_permitted(entry));
        let flows = self.0.delete(&stale, &mut refuse)?;
        if !unanswered.is_empty() {
            waited = ON_THE_WAY.saturating_sub(unanswered_at.elapsed());
            thread::sleep(waited);
            let mut still = self.list_stale(family, Protocol::Tcp, sweep, &mut 0)?;
            still.retain(|entry| unanswered.contains(entry) && !is_permitted(entry));
            half_open += self.0.delete(&still, &mut refuse)?;
        }
        let took = started.elapsed().saturating_sub(waited);
        Ok(Report { family, listed, deleted: flows + half_open, half_open, refused, took })
    }

    /// Lists the stale entries of a protocol, and counts all that the kernel lists.
    fn list_stale(
        &mut self,
        family: Family,
        protocol: Protocol,
        sweep: &Sweep,
        listed: &mut usize,
    ) -> Result<HashSet<Entry>, Error> {
        let mut stale = HashSet::new();
        let ports = sweep.ports(family, protocol);
        if ports.is_empty() {
            return Ok(stale);
        }
        let family = match family {
            Family::V4 => nfnetlink::Family::Ip,
            Family::V6 => nfnetlink::Family::Ip6,
        };
        self.0.list(family, &filters(protocol, &ports), |entry| {
            *listed += 1;
            if entry.protocol == protocol.number() && sweep.is_stale(&entry) {
                stale.insert(entry);
            }
        })?;
        Ok(stale)
    }
}

/// Returns the filters for entries of a protocol to these ports; for TCP, only for entries without
/// an answer.
fn filters(protocol: Protocol, ports: &BTreeSet<u16>) -> Vec<Filter> {
    // TCP has few such entries: the walk of the hash table is most of the work.
    let most = if protocol == Protocol::Tcp { 1 } else { MAX_FILTERED_DUMPS };
    if ports.len() > most {
        return vec![filter(protocol, None)];
    }
    ports.iter().map(|port| filter(protocol, Some(*port))).collect()
}

fn filter(protocol: Protocol, port: Option<u16>) -> Filter {
    Filter { protocol: protocol.number(), port, unanswered: protocol == Protocol::Tcp }
}
