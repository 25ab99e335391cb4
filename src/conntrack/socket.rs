//! One sweep: which entries are listed, and when those that are stale are deleted.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use foldhash::{HashSet, HashSetExt as _};
use nfnetlink::conntrack::{self, Entry, Filter};
use shunt_core::model::{Family, Protocol};

use super::{Error, Sweep};

/// Up to how many ports are asked for one by one: a Service has one, and a node port. Each dump
/// walks the whole hash table (9 ms for 262 144 buckets), an entry that is listed costs 1.4 µs.
/// With two ports, asking for each is the slower way below 10 000 UDP flows, by 9 ms at most, and
/// twice as fast with 100 000; from four ports on it never pays.
const MAX_FILTERED_DUMPS: usize = 2;
/// How long a half-open connection has for an answer that is on its way. Packets need less time
/// from anywhere in a cluster, and a client that gets no answer sends its SYN again after a second.
const ON_THE_WAY: Duration = Duration::from_millis(20);

/// What a sweep of one family did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The family.
    pub family: Family,
    /// How many entries the kernel listed.
    pub listed: usize,
    /// How many of them were deleted.
    pub deleted: usize,
    /// How many of these were half-open connections of TCP.
    pub half_open: usize,
    /// How long it took, without the pause in which half-open connections may be answered.
    pub took: Duration,
}

/// Connection tracking in a network namespace: in the one that the thread was in which opened it.
pub struct Conntrack(conntrack::Conntrack);

impl Conntrack {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel has no netlink for netfilter.
    pub fn open() -> Result<Conntrack, Error> {
        conntrack::Conntrack::open().map(Conntrack)
    }

    /// Asks a question, so that the kernel loads the modules of connection tracking if it has not.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn load(&mut self) -> Result<(), Error> {
        self.0.list(nfnetlink::Family::Ip, &[filter(Protocol::Udp, Some(0))], |_| {})
    }

    /// Deletes the stale entries of a family.
    ///
    /// Half-open connections to former backends are listed twice: what is answered meanwhile stays.
    /// So nobody loses a connection to a backend that was taken out of use a moment ago and works.
    ///
    /// # Errors
    /// If entries could not be listed or, other than because they are gone already, deleted. Some
    /// may have been deleted nevertheless.
    pub fn sweep(&mut self, family: Family, sweep: &Sweep) -> Result<Report, Error> {
        let started = Instant::now();
        let (mut listed, mut waited) = (0, Duration::ZERO);
        let mut unanswered = self.list_stale(family, Protocol::Tcp, sweep, &mut listed)?;
        let unanswered_at = Instant::now();
        let untranslated: HashSet<Entry> =
            unanswered.extract_if(|entry| !entry.is_translated()).collect();
        let mut half_open = self.0.delete(&untranslated)?;
        let stale = self.list_stale(family, Protocol::Udp, sweep, &mut listed)?;
        let flows = self.0.delete(&stale)?;
        if !unanswered.is_empty() {
            waited = ON_THE_WAY.saturating_sub(unanswered_at.elapsed());
            thread::sleep(waited);
            let mut still = self.list_stale(family, Protocol::Tcp, sweep, &mut 0)?;
            still.retain(|entry| unanswered.contains(entry));
            half_open += self.0.delete(&still)?;
        }
        let took = started.elapsed().saturating_sub(waited);
        Ok(Report { family, listed, deleted: flows + half_open, half_open, took })
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

/// Returns the filters for entries of a protocol to these ports, of TCP only those without an
/// answer.
fn filters(protocol: Protocol, ports: &BTreeSet<u16>) -> Vec<Filter> {
    // Of TCP there is little to list: walking the hash table is most of the work.
    let most = if protocol == Protocol::Tcp { 1 } else { MAX_FILTERED_DUMPS };
    if ports.len() > most {
        return vec![filter(protocol, None)];
    }
    ports.iter().map(|port| filter(protocol, Some(*port))).collect()
}

fn filter(protocol: Protocol, port: Option<u16>) -> Filter {
    Filter { protocol: protocol.number(), port, unanswered: protocol == Protocol::Tcp }
}
