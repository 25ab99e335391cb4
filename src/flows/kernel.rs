//! One sweep: lists entries, and deletes the stale ones.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nfnetlink::conntrack::{self, Connection, Destination};
use nix::errno::Errno;
use shunt_core::model::{Family, Protocol};

use super::{Error, Sweep};

/// Up to this number of ports, each gets a filtered dump: a Service has one, and a node port. Each
/// dump walks the whole hash table (9 ms for 262 144 buckets), a listed entry costs 1.4 µs. With
/// two ports, two dumps are slower below 10 000 UDP flows, by 9 ms at most, and twice as fast with
/// 100 000. With four ports, they are never faster.
const MAX_FILTERED_DUMPS: usize = 2;

/// How long a process of the node takes for an answer, usually.
const ANSWER: Duration = Duration::from_millis(50);

/// The result of a sweep of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepReport {
    /// The family of the deleted entries.
    pub family: Family,
    /// Number of entries that the kernel listed.
    pub listed: usize,
    /// Number of deleted entries.
    pub deleted: usize,
    /// Number of stale entries that the kernel did not delete, and its last reason.
    pub refused: Option<(usize, Errno)>,
    /// The duration.
    pub took: Duration,
}

impl SweepReport {
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
        self.0.connections_to(nfnetlink::Family::Ip, &to(Some(0)), |_| {})
    }

    /// Deletes the stale entries of a family.
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
        is_permitted: &mut dyn FnMut(&Connection) -> bool,
    ) -> Result<SweepReport, Error> {
        let started = Instant::now();
        let mut listed = 0;
        let mut stale = Vec::new();
        for destination in destinations(&sweep.ports(family)) {
            self.0.connections_to(netlink(family), &destination, |entry| {
                listed += 1;
                if sweep.is_stale(&entry) {
                    stale.push(entry);
                }
            })?;
        }
        stale.retain(|entry| !is_permitted(entry));
        let mut refused = None;
        let mut note = |errno| {
            let (count, _) = refused.unwrap_or((0, errno));
            refused = Some((count + 1, errno));
        };
        let mut deleted = self.0.delete(&stale, &mut note)?;
        // A process of the node may still answer on the port that became a frontend's. Its answer makes an
        // entry, for which the client's next packets are answers: they would never meet the rules.
        stale.retain(|entry| entry.reply.source == entry.original.destination);
        if !stale.is_empty() {
            std::thread::sleep(ANSWER);
            let mut reversed = Vec::new();
            for entry in stale {
                reversed.extend(self.0.get(entry.protocol, &entry.reply)?);
            }
            deleted += self.0.delete(&reversed, &mut note)?;
        }
        Ok(SweepReport { family, listed, deleted, refused, took: started.elapsed() })
    }
}

fn netlink(family: Family) -> nfnetlink::Family {
    match family {
        Family::V4 => nfnetlink::Family::Ip,
        Family::V6 => nfnetlink::Family::Ip6,
    }
}

/// Returns what to list, for entries of UDP to these ports.
fn destinations(ports: &BTreeSet<u16>) -> Vec<Destination> {
    if ports.len() > MAX_FILTERED_DUMPS {
        return vec![to(None)];
    }
    ports.iter().map(|port| to(Some(*port))).collect()
}

fn to(port: Option<u16>) -> Destination {
    Destination { protocol: Protocol::Udp.number(), address: None, port }
}
