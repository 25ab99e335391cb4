//! When a socket on a node port is reported, and when its end is. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use shunt_core::model::Protocol;

use super::conflict::TakenSockets;
use super::report::TakenPort;
use crate::socket_owners::Process;
use crate::status::Time;

/// A change of a node port.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Another process listens on it, or other processes than before.
    Taken(TakenPort),
    /// No other process listens on it any more, or it is no node port any more.
    Free(TakenPort),
}

/// The node ports on which other processes listen.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    /// When each UDP socket in the way was first seen, by inode.
    udp_since: BTreeMap<u32, Instant>,
    /// The process of each socket in the way, by inode; `None` if it is not visible.
    owners: BTreeMap<u32, Option<Process>>,
    taken: BTreeMap<(Protocol, u16), TakenPort>,
}

impl Tracker {
    /// Returns the taken node ports.
    pub(super) fn taken(&self) -> impl Iterator<Item = &TakenPort> {
        self.taken.values()
    }

    /// Takes the sockets that are in the way now. UDP sockets count after `udp_delay`: a client has
    /// one for some seconds at a port of the kernel's choice. `owners` finds the processes of new
    /// sockets. Those of the process `own` do not count.
    pub(super) fn update(
        &mut self,
        mut found: BTreeMap<(Protocol, u16), TakenSockets>,
        now: (Instant, Time),
        udp_delay: Duration,
        own: u32,
        owners: impl FnOnce(&BTreeSet<u32>) -> BTreeMap<u32, Process>,
    ) -> Vec<Change> {
        self.wait_for_udp(&mut found, now.0, udp_delay);
        self.note_owners(&found, owners);
        let mut taken = BTreeMap::new();
        let owner = |inode: u32| self.owners.get(&inode).cloned().flatten();
        for (key, mut sockets) in found {
            let is_foreign = |owner: Option<Process>| owner.is_none_or(|it| it.process != own);
            sockets.sockets.retain(|socket| is_foreign(owner(socket.inode)));
            if !sockets.sockets.is_empty() {
                taken.insert(key, TakenPort::new(key, sockets, now.1, owner));
            }
        }
        self.replace(taken)
    }

    /// Removes the UDP sockets that have not existed for `delay` yet.
    fn wait_for_udp(
        &mut self,
        found: &mut BTreeMap<(Protocol, u16), TakenSockets>,
        now: Instant,
        delay: Duration,
    ) {
        let before = std::mem::take(&mut self.udp_since);
        found.retain(|(protocol, _), taken| {
            if *protocol == Protocol::Udp {
                taken.sockets.retain(|socket| {
                    let since = before.get(&socket.inode).copied().unwrap_or(now);
                    self.udp_since.insert(socket.inode, since);
                    now.saturating_duration_since(since) >= delay
                });
            }
            !taken.sockets.is_empty()
        });
    }

    /// Finds the processes of sockets that are new.
    fn note_owners(
        &mut self,
        found: &BTreeMap<(Protocol, u16), TakenSockets>,
        owners: impl FnOnce(&BTreeSet<u32>) -> BTreeMap<u32, Process>,
    ) {
        let sockets = found.values().flat_map(|taken| &taken.sockets);
        let inodes: BTreeSet<u32> = sockets.map(|socket| socket.inode).collect();
        self.owners.retain(|inode, _| inodes.contains(inode));
        let new: BTreeSet<u32> =
            inodes.into_iter().filter(|inode| !self.owners.contains_key(inode)).collect();
        if !new.is_empty() {
            let mut found = owners(&new);
            self.owners.extend(new.into_iter().map(|inode| (inode, found.remove(&inode))));
        }
    }

    /// Compares with the node ports of before.
    fn replace(&mut self, taken: BTreeMap<(Protocol, u16), TakenPort>) -> Vec<Change> {
        let mut before = std::mem::replace(&mut self.taken, taken);
        let mut changes = Vec::new();
        for (key, now) in &mut self.taken {
            let old = before.remove(key);
            if let Some(old) = &old {
                now.since = old.since;
            }
            if old.is_none_or(|old| subject(&old) != subject(now)) {
                changes.push(Change::Taken(now.clone()));
            }
        }
        changes.extend(before.into_values().map(Change::Free));
        changes
    }
}

/// Returns what makes a new report: the Service, and the programs. A restart of a program does not.
fn subject(taken: &TakenPort) -> (&str, BTreeSet<&str>) {
    let programs = taken.processes.iter().map(|process| process.name.as_str());
    (&taken.service, programs.collect())
}

#[cfg(test)]
mod tests {
    use nfnetlink::sock_diag::WaitingSocket;
    use shunt_core::model::ObjectName;

    use super::*;

    const DELAY: Duration = Duration::from_secs(5);
    const OWN: u32 = 1;

    /// Protocol, port, inode and process.
    type Socket = (Protocol, u16, u32, Option<(u32, &'static str)>);

    struct World {
        tracker: Tracker,
        start: Instant,
        /// How often processes were looked for.
        searches: usize,
    }

    impl World {
        fn new() -> World {
            World { tracker: Tracker::default(), start: Instant::now(), searches: 0 }
        }

        fn update(&mut self, seconds: u64, sockets: &[Socket]) -> Vec<String> {
            let mut found: BTreeMap<_, TakenSockets> = BTreeMap::new();
            for (protocol, port, inode, _) in sockets {
                let service = ObjectName::new("shop", "web");
                let taken = found.entry((*protocol, *port));
                let taken = taken.or_insert(TakenSockets { service, sockets: Vec::new() });
                taken.sockets.push(WaitingSocket {
                    address: [0, 0, 0, 0].into(),
                    port: *port,
                    v6_only: false,
                    interface: None,
                    uid: 0,
                    inode: *inode,
                });
            }
            let now = (self.start + Duration::from_secs(seconds), Time::default());
            let searches = &mut self.searches;
            let changes = self.tracker.update(found, now, DELAY, OWN, |wanted| {
                *searches += 1;
                let owner = |(_, _, inode, owner): &Socket| {
                    let (process, name) = (*owner)?;
                    let process = Process { process, name: name.to_owned() };
                    wanted.contains(inode).then_some((*inode, process))
                };
                sockets.iter().filter_map(owner).collect()
            });
            let text = |change: Change| {
                let (word, taken) = match change {
                    Change::Taken(taken) => ("taken", taken),
                    Change::Free(taken) => ("free", taken),
                };
                let names: Vec<_> = taken.processes.into_iter().map(|it| it.name).collect();
                format!("{word} {} {}", taken.port, names.join("+"))
            };
            changes.into_iter().map(text).collect()
        }
    }

    const TCP: Protocol = Protocol::Tcp;
    const UDP: Protocol = Protocol::Udp;

    #[test]
    fn a_port_is_reported_once_until_it_is_free() {
        let mut world = World::new();
        let nginx = [(TCP, 30_080, 7, Some((70, "nginx")))];
        assert_eq!(world.update(0, &nginx), ["taken 30080 nginx"]);
        assert_eq!(world.update(10, &nginx), [""; 0]);
        assert_eq!(world.searches, 1, "a known socket needs no search");
        assert_eq!(world.update(20, &[]), ["free 30080 nginx"]);
        assert_eq!(world.update(30, &nginx), ["taken 30080 nginx"]);
        assert_eq!(world.tracker.taken().count(), 1);
    }

    #[test]
    fn a_restart_is_no_news_and_another_program_is() {
        let mut world = World::new();
        world.update(0, &[(TCP, 30_080, 7, Some((70, "nginx")))]);
        assert_eq!(world.update(10, &[(TCP, 30_080, 8, Some((71, "nginx")))]), [""; 0]);
        let processes: Vec<_> = world.tracker.taken().flat_map(|it| &it.processes).collect();
        assert_eq!(processes.iter().map(|it| it.process).collect::<Vec<_>>(), [71]);
        let envoy = [(TCP, 30_080, 9, Some((72, "envoy")))];
        assert_eq!(world.update(20, &envoy), ["taken 30080 envoy"]);
    }

    #[test]
    fn own_sockets_do_not_count() {
        let mut world = World::new();
        let own = (TCP, 30_080, 7, Some((OWN, "shunt")));
        assert_eq!(world.update(0, &[own]), [""; 0]);
        let both = [own, (TCP, 30_080, 8, None)];
        assert_eq!(world.update(10, &both), ["taken 30080 "]);
    }

    #[test]
    fn udp_sockets_count_after_a_delay() {
        let mut world = World::new();
        let client = |inode| [(UDP, 32_000, inode, Some((70, "resolver")))];
        for second in 0..20 {
            assert_eq!(world.update(second, &client(second as u32)), [""; 0]);
        }
        assert_eq!(world.searches, 0);
        assert_eq!(world.update(20, &client(99)), [""; 0]);
        assert_eq!(world.update(24, &client(99)), [""; 0]);
        assert_eq!(world.update(25, &client(99)), ["taken 32000 resolver"]);
        assert_eq!(world.update(26, &[]), ["free 32000 resolver"]);
    }
}
