//! The detector with made-up time, endpoints and clients.

use proptest::prelude::*;

use super::super::flows::EndpointFlows;
use super::*;

/// The interval of looks.
const STEP: Duration = Duration::from_millis(100);

/// How an endpoint behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Answers,
    /// The host answers on other ports.
    SilentPort,
    SilentHost,
}

use Behaviour::{Answers, SilentHost, SilentPort};

/// A pool, its clients and the network.
struct World {
    detector: Detector,
    now: Instant,
    began: Instant,
    /// Each endpoint with true if it is on this node.
    pool: BTreeMap<SocketAddr, (Behaviour, bool)>,
    /// The endpoints to which clients repeat SYNs.
    waiting: BTreeSet<SocketAddr>,
    /// The endpoints that answer a new flow of another client at each look.
    busy: BTreeSet<SocketAddr>,
    /// The agent cannot send.
    is_mute: bool,
    /// The network drops all packets of the agent.
    is_blocked: bool,
    /// The clients that wait also have answered flows to this endpoint.
    served: Option<SocketAddr>,
    /// The clients have the address that the agent has.
    is_node: bool,
    flows: u32,
    changes: Vec<(Duration, SocketAddr, Change)>,
}

fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::new(std::net::Ipv4Addr::new(10, 244, 1, n).into(), 8080)
}

impl World {
    fn new(pool: &[Behaviour]) -> World {
        let all = (1..).zip(pool).map(|(n, behaviour)| (endpoint(n), (*behaviour, false)));
        let now = Instant::now();
        World {
            detector: Detector::default(),
            now,
            began: now,
            pool: all.collect(),
            waiting: BTreeSet::new(),
            busy: BTreeSet::new(),
            is_mute: false,
            is_blocked: false,
            served: None,
            is_node: false,
            flows: 0,
            changes: Vec::new(),
        }
    }

    fn set(&mut self, n: u8, behaviour: Behaviour) {
        self.pool.get_mut(&endpoint(n)).expect("an endpoint").0 = behaviour;
    }

    fn answer(&self, to: SocketAddr) -> Option<Answer> {
        let host = self.pool.iter().find(|(it, _)| it.ip() == to.ip()).map(|(_, (it, _))| *it);
        match host {
            _ if self.is_mute => Some(Answer::NotSent),
            _ if self.is_blocked => None,
            Some(Answers) => Some(Answer::Answered),
            Some(SilentPort) if to.port() == OTHER_PORT => Some(Answer::Answered),
            _ => None,
        }
    }

    fn flows(&mut self) -> Flows {
        let wanted = self.detector.wanted_flows();
        let client: IpAddr = [10, 244, 0, 9].into();
        let mut flows = Flows::default();
        for endpoint in &wanted.endpoints {
            let mut seen = EndpointFlows::default();
            if self.waiting.contains(endpoint) {
                seen.waiting.insert(client);
            }
            if self.busy.contains(endpoint) {
                self.flows += 1;
                seen.answered.insert(self.flows.to_ne_bytes());
                seen.answered_clients.insert(self.flows.to_ne_bytes());
            }
            flows.endpoints.insert(*endpoint, seen);
        }
        flows.direct.extend(self.is_node.then_some(client));
        for sibling in self.served.iter().filter(|it| wanted.siblings.contains(it)) {
            flows.served.insert(*sibling, HashSet::from_iter([client]));
        }
        flows
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for endpoint in &self.waiting {
            self.detector.repeated_syn(*endpoint, now, now);
        }
        let placed = |it: &SocketAddr| Neighbours {
            is_local: self.pool[it].1,
            siblings: self
                .pool
                .iter()
                .filter(|(other, _)| *other != it)
                .map(|(other, (_, is_local))| (*other, *is_local))
                .collect(),
        };
        let followed = self.detector.endpoints().filter(|it| self.pool.contains_key(it));
        let neighbours = followed.map(|it| (it, placed(&it))).collect();
        self.detector.place(neighbours, now);
        if self.detector.has_suspects() {
            let flows = self.flows();
            self.detector.saw_flows(flows, now);
        }
        self.detector.decide(now);
        for to in self.detector.probes(now) {
            if let Some(answer) = self.answer(to) {
                self.detector.heard(to, answer, now);
            }
        }
        let changes = self.detector.take_changes();
        self.changes.extend(changes.into_iter().map(|(it, change)| (now - self.began, it, change)));
    }

    fn run(&mut self, time: Duration) -> &mut World {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
        self
    }

    /// Returns the changes since the last call.
    fn changes(&mut self) -> Vec<(Duration, SocketAddr, Change)> {
        std::mem::take(&mut self.changes)
    }

    fn found(&self) -> Vec<SocketAddr> {
        self.detector.unresponsive()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn silent_host_is_found_before_the_third_syn() {
    let mut world = World::new(&[Answers, Answers, SilentHost]);
    world.waiting.insert(endpoint(3));
    let changes = world.run(seconds(2)).changes();
    let [(after, found, Change::Unresponsive(Reason::SilentHost))] = changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(found, endpoint(3));
    assert!((HOST_SILENCE..HOST_SILENCE + STEP * 2).contains(&after), "{after:?}");
}

#[test]
fn silent_port_of_a_live_host_takes_longer() {
    let mut world = World::new(&[Answers, SilentPort]);
    world.waiting.insert(endpoint(2));
    assert_eq!(world.run(PORT_SILENCE).found(), []);
    let changes = world.run(seconds(1)).changes();
    assert!(matches!(changes[..], [(_, _, Change::Unresponsive(Reason::SilentPort))]));
}

#[test]
fn answers_to_the_agent_or_a_client_count() {
    // To the agent; to another client, even if the agent gets none.
    let mut world = World::new(&[Answers, Answers]);
    world.waiting.insert(endpoint(2));
    assert_eq!(world.run(seconds(60)).found(), []);
    let mut world = World::new(&[Answers, SilentHost]);
    world.waiting.insert(endpoint(2));
    world.busy.insert(endpoint(2));
    assert_eq!(world.run(seconds(60)).found(), []);
}

#[test]
fn probes_that_prove_nothing_find_nothing() {
    for (is_mute, is_blocked) in [(true, false), (false, true)] {
        let mut world = World::new(&[Answers, Answers, SilentHost]);
        (world.is_mute, world.is_blocked) = (is_mute, is_blocked);
        world.waiting.insert(endpoint(3));
        assert_eq!(world.run(seconds(30)).found(), []);
    }
    // A policy may block the agent from other nodes.
    let mut world = World::new(&[Answers, SilentHost]);
    world.pool.insert(endpoint(1), (Answers, true));
    world.waiting.insert(endpoint(2));
    assert_eq!(world.run(seconds(30)).found(), []);
}

#[test]
fn client_that_another_backend_answers_is_evidence_for_a_while() {
    let mut world = World::new(&[Answers, SilentHost]);
    world.pool.insert(endpoint(1), (Answers, true));
    world.served = Some(endpoint(1));
    world.waiting.insert(endpoint(2));
    assert_eq!(world.run(seconds(2)).found(), [endpoint(2)]);
    world.waiting.clear();
    world.changes();
    // The policy stays, the endpoint answers clients.
    let changes = world.run(FIRST_TRIAL).changes();
    assert!(matches!(changes[..], [(_, _, Change::Trial)]), "{changes:?}");
}

#[test]
fn dead_pool_is_not_found() {
    let mut world = World::new(&[SilentHost, SilentPort, SilentHost]);
    world.waiting.extend([endpoint(1), endpoint(2)]);
    assert_eq!(world.run(seconds(60)).found(), []);
    assert_eq!(world.detector.found(world.now)[0].reason, Reason::NoOtherAnswers);
}

#[test]
fn endpoint_returns_when_no_other_answers() {
    let mut world = World::new(&[Answers, Answers, SilentHost]);
    world.waiting.insert(endpoint(3));
    assert_eq!(world.run(seconds(2)).found(), [endpoint(3)]);
    world.set(1, SilentHost);
    world.set(2, SilentHost);
    world.changes();
    let changes = world.run(seconds(10)).changes();
    assert!(matches!(changes[..], [(_, _, Change::Doubted)]), "{changes:?}");
}

#[test]
fn flapping_endpoint_needs_more_successes_each_time() {
    let mut world = World::new(&[Answers, Answers, SilentHost]);
    let mut away = Vec::new();
    for _ in 0..4 {
        world.set(3, SilentHost);
        world.waiting.insert(endpoint(3));
        assert_eq!(world.run(CALM + seconds(2)).found(), [endpoint(3)]);
        world.waiting.clear();
        world.set(3, Answers);
        let from = world.now;
        while !world.found().is_empty() {
            world.step();
        }
        away.push(world.now - from);
    }
    assert!(away.is_sorted(), "{away:?}");
    assert!(away[3] >= FIRST_PAUSE * 3, "{away:?}");
    // Long ago.
    world.run(MEMORY);
    assert_eq!(world.detector.recent(endpoint(3), world.now), 0);
    assert!(world.detector.verdicts.is_empty() && world.detector.alive.is_empty());
}

#[test]
fn pauses_grow_up_to_a_minute() {
    let mut world = World::new(&[Answers, Answers, SilentHost]);
    world.waiting.insert(endpoint(3));
    world.run(seconds(600));
    let found = &world.detector.unresponsive[&endpoint(3)];
    assert_eq!(found.pause, LONGEST_PAUSE);
}

#[test]
fn no_verdict_lasts_for_ever() {
    let mut world = World::new(&[SilentHost, Answers, Answers]);
    world.waiting.insert(endpoint(1));
    assert_eq!(world.run(seconds(10)).found(), [endpoint(1)]);
    world.waiting.clear();
    assert_eq!(world.run(LONGEST_TRIAL).found(), []);
    assert_eq!(world.changes().last().map(|(_, _, change)| *change), Some(Change::Trial));
}

#[test]
fn probes_that_the_agent_cannot_send_delay_nothing() {
    let mut world = World::new(&[SilentHost, Answers, Answers]);
    world.waiting.insert(endpoint(1));
    assert_eq!(world.run(seconds(3)).found(), [endpoint(1)]);
    world.is_mute = true;
    assert_eq!(world.run(seconds(60)).found(), [endpoint(1)]);
    world.set(1, Answers);
    world.is_mute = false;
    assert_eq!(world.run(seconds(3)).found(), []);
}

#[test]
fn answers_of_this_nodes_pods_to_the_node_prove_nothing() {
    let mut world = World::new(&[SilentHost, Answers]);
    world.pool.get_mut(&endpoint(2)).expect("an endpoint").1 = true;
    world.waiting.insert(endpoint(1));
    world.served = Some(endpoint(2));
    world.is_node = true;
    assert_eq!(world.run(seconds(10)).found(), []);
    world.is_node = false;
    assert_eq!(world.run(seconds(3)).found(), [endpoint(1)]);
}

#[test]
fn endpoint_without_a_pool_is_forgotten() {
    let mut world = World::new(&[Answers, Answers, SilentHost]);
    world.waiting.extend([endpoint(3), endpoint(9)]);
    assert_eq!(world.run(seconds(2)).found(), [endpoint(3)]);
    world.pool.remove(&endpoint(3));
    world.changes();
    let changes = world.run(seconds(1)).changes();
    assert!(matches!(changes[..], [(_, _, Change::Forgotten)]), "{changes:?}");
    // Another DNAT than ours leads there.
    assert!(world.detector.found(world.now).is_empty());
}

#[test]
fn suspicion_ends_without_repeated_syns() {
    let mut world = World::new(&[SilentHost, SilentHost]);
    world.waiting.insert(endpoint(1));
    world.run(seconds(3));
    assert!(world.detector.has_suspects());
    world.waiting.clear();
    world.run(SUSPICION + STEP * 2);
    assert!(!world.detector.has_suspects());
}

#[test]
fn number_of_suspects_is_bounded() {
    let mut detector = Detector::default();
    let now = Instant::now();
    for port in 1..1_000 {
        detector.repeated_syn(SocketAddr::new([10, 244, 0, 1].into(), port), now, now);
    }
    assert_eq!(detector.endpoints().count(), MAX_SUSPECTS);
}

proptest! {
    /// Whatever other endpoints and clients do.
    #[test]
    fn endpoint_that_answers_is_never_found(
        events in proptest::collection::vec(
            (1_u8..6, 0_u8..8, any::<bool>(), 0_u64..40), 1..40),
    ) {
        let mut world = World::new(&[Answers; 6]);
        // Nothing but answers; even clients that are blocked wait for it.
        world.waiting.insert(endpoint(6));
        for (n, event, yes, steps) in events {
            match event {
                0 => world.set(n, Answers),
                1 => world.set(n, SilentPort),
                2 => world.set(n, SilentHost),
                3 if yes => drop(world.waiting.insert(endpoint(n))),
                3 => drop(world.waiting.remove(&endpoint(n))),
                4 if yes => drop(world.busy.insert(endpoint(n))),
                4 => drop(world.busy.remove(&endpoint(n))),
                5 => world.served = yes.then(|| endpoint(n)),
                6 => drop(world.pool.remove(&endpoint(7))),
                _ => {
                    world.pool.insert(endpoint(7), (SilentHost, yes));
                    world.waiting.insert(endpoint(7));
                }
            }
            for _ in 0..steps {
                world.step();
                prop_assert!(!world.found().contains(&endpoint(6)));
            }
        }
    }

    /// The order of the list is that of the verdicts, and nothing is listed twice.
    #[test]
    fn list_is_in_the_order_of_the_verdicts(
        starts in proptest::collection::vec((1_u8..8, 0_u64..30), 1..12),
    ) {
        let mut world = World::new(&[SilentHost; 8]);
        world.set(8, Answers);
        let mut order: Vec<SocketAddr> = Vec::new();
        for (n, steps) in starts {
            world.waiting.insert(endpoint(n));
            for _ in 0..steps {
                world.step();
                for (_, endpoint, change) in world.changes() {
                    prop_assert!(matches!(change, Change::Unresponsive(_)));
                    order.push(endpoint);
                }
                let mut listed = world.found();
                listed.sort_unstable();
                let mut expected = order.clone();
                expected.sort_unstable();
                prop_assert_eq!(listed, expected);
            }
        }
        let since = |it: &SocketAddr| world.detector.unresponsive[it].since;
        prop_assert!(world.found().iter().map(since).is_sorted());
    }
}
