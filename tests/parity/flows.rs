//! Random sequences of object changes and client actions, played on both sides.
//!
//! Clients keep flows open while endpoints and the Service change: TCP connections that are half
//! open or established, and UDP flows that are answered or not. After each change every flow sends
//! again. The side's connection tracking tells the endpoint of each flow. Which endpoint a flow
//! gets is chance, so flows of both sides are compared that have had the same endpoints up to now:
//! they must get an endpoint in the same state, and the same reply.
//!
//! `SHUNT_SEED` and `SHUNT_PARITY_STEPS` make a run another one, or a longer one.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_fake_apiserver::{Key, Kind, Kubernetes};
use shunt_testbed::{
    EndpointSlice, Flow, Host, Outcome, Protocol, Random, Service, patience, seed,
};

use crate::exceptions;
use crate::world::{OTHER_TARGET as PORT, Side, World};

const STEPS: usize = 12;
/// The seed of a run without `SHUNT_PARITY_STEPS`.
const SEED: u64 = 1;
/// The flows that an action opens.
const FLOWS: usize = 8;
/// Older flows are closed.
const BATCHES: usize = 6;
/// For new flows.
const SHORT: Duration = Duration::from_millis(300);
/// After a change: longer than the kernel takes to send a SYN again.
const LONG: Duration = Duration::from_millis(1300);
/// How long a difference must last: on a busy machine replies come late.
const LASTING: Duration = Duration::from_secs(12);
/// Where the kernel cannot send SYNs at equal intervals, the intervals double after this time.
const HALF_OPEN: Duration = Duration::from_secs(3);

/// The state of an endpoint, as its slice says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ready,
    Unready,
    Terminating,
    Dying,
    /// In no slice.
    Absent,
}

impl State {
    const ALL: [Self; 5] =
        [Self::Ready, Self::Unready, Self::Terminating, Self::Dying, Self::Absent];

    fn conditions(self) -> &'static str {
        match self {
            Self::Ready => "conditions: {ready: true, serving: true, terminating: false}",
            Self::Unready => "conditions: {ready: false, serving: false, terminating: false}",
            Self::Terminating => "conditions: {ready: false, serving: true, terminating: true}",
            Self::Dying => "conditions: {ready: false, serving: false, terminating: true}",
            Self::Absent => "",
        }
    }
}

/// The objects, and which pods drop what starts a flow.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Of pod-1, pod-2 and pod-3.
    states: [State; 3],
    muted: [bool; 3],
    service: bool,
    local: bool,
    affinity: bool,
}

const PODS: [&str; 3] = ["pod-1", "pod-2", "pod-3"];

impl Objects {
    /// A Service with three ready endpoints.
    pub(crate) fn new() -> Self {
        let (states, muted) = ([State::Ready; 3], [false; 3]);
        Self { states, muted, service: true, local: false, affinity: false }
    }

    fn state(&self, endpoint: &str) -> Option<State> {
        PODS.iter().position(|pod| *pod == endpoint).map(|pod| self.states[pod])
    }

    /// Whether the Service is there and any endpoint serves.
    pub(crate) fn serves(&self) -> bool {
        let serving = |state: &State| matches!(state, State::Ready | State::Terminating);
        self.service && self.states.iter().any(serving)
    }

    /// Changes something, and says what.
    fn change(&mut self, random: &mut Random) -> String {
        match random.below(20) {
            0..11 => {
                let pod = random.below(3);
                self.states[pod] = *random.one_of(&State::ALL);
                format!("{} is {:?}", PODS[pod], self.states[pod])
            }
            11..15 => {
                let pod = random.below(3);
                self.muted[pod] = !self.muted[pod];
                format!("{} is {}", PODS[pod], if self.muted[pod] { "silent" } else { "back" })
            }
            15 => {
                self.states = [State::Absent; 3];
                "no endpoints".to_owned()
            }
            16 => {
                self.states = [State::Ready; 3];
                "all endpoints are ready".to_owned()
            }
            17 => {
                self.service = !self.service;
                format!("the Service is there: {}", self.service)
            }
            18 => {
                self.local = !self.local;
                format!("externalTrafficPolicy Local: {}", self.local)
            }
            _ => {
                self.affinity = !self.affinity;
                format!("affinity: {}", self.affinity)
            }
        }
    }

    /// Writes everything.
    fn put(&self, world: &World<'_>) -> Result<()> {
        let key = Key::new(Kind::Service, "flows");
        if self.service {
            let policy = if self.local { "Local" } else { "Cluster" };
            let affinity = if self.affinity { "ClientIP" } else { "None" };
            world.put(
                Service::everywhere("flows", 11)
                    .spec(&format!("externalTrafficPolicy: {policy}"))
                    .spec(&format!("sessionAffinity: {affinity}")),
            )?;
        } else {
            // It need not be there.
            let _ = world.kubernetes.delete(&key);
        }
        let lab = &world.shunt.lab;
        for slice in [EndpointSlice::v4("flows"), EndpointSlice::v6("flows")] {
            let slice = slice.port("tcp", Protocol::Tcp, PORT).port("udp", Protocol::Udp, PORT);
            let pods = lab.pods().into_iter().zip(self.states);
            let listed = pods.filter(|(_, state)| *state != State::Absent);
            let add = |slice: EndpointSlice, (pod, state): (&Host, State)| {
                slice.host(pod, state.conditions())
            };
            world.put(listed.fold(slice, add))?;
        }
        for side in world.sides() {
            let pods = side.lab.pods();
            pods.into_iter().zip(self.muted).try_for_each(|(pod, muted)| mute(pod, muted))?;
        }
        // The second is done after all that followed from the first, as the removal of entries.
        world.settle()?;
        world.settle()
    }
}

/// Drops what would start a flow, and lets established connections go on.
fn mute(pod: &Host, muted: bool) -> Result<()> {
    let rules =
        format!("tcp dport {PORT} tcp flags & (syn | ack) == syn drop\nudp dport {PORT} drop\n");
    pod.nft(&format!(
        "table inet mute {{}}\ndelete table inet mute\n\
         table inet mute {{\nchain c {{\ntype filter hook prerouting priority -300\n{}}}\n}}\n",
        if muted { &rules } else { "" }
    ))
}

/// Flows that were opened at the same time to the same address.
#[derive(Clone, Copy, Debug)]
struct Batch {
    id: usize,
    protocol: Protocol,
    from_node: bool,
    to: SocketAddr,
}

impl Batch {
    fn random(id: usize, random: &mut Random) -> Self {
        let v4 = random.below(2) == 0;
        let frontends = if v4 {
            ["10.96.0.11:80", "192.0.2.10:30081", "203.0.113.11:80"]
        } else {
            ["[fd00:96::11]:80", "[2001:db8:2::10]:30081", "[2001:db8:113::11]:80"]
        };
        let to = random.one_of(&frontends).parse();
        Self {
            id,
            protocol: *random.one_of(&[Protocol::Tcp, Protocol::Udp]),
            from_node: random.below(4) == 0,
            to: to.unwrap_or_else(|_| SocketAddr::from(([0; 4], 0))),
        }
    }
}

impl Batch {
    /// Whether `externalTrafficPolicy` Local is about the flows.
    fn is_external(self) -> bool {
        let cluster_ips = ["10.96.0.11", "fd00:96::11"];
        !self.from_node && !cluster_ips.contains(&self.to.ip().to_string().as_str())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = if self.from_node { "node" } else { "client" };
        write!(f, "flows {} from {origin} to {}/{}", self.id, self.to, self.protocol)
    }
}

/// A flow with the endpoints that it has had after each step; `-` is none.
struct Kept {
    batch: Batch,
    flow: Flow,
    /// It was a TCP connection that was not established after the step before.
    half_open: bool,
    history: Vec<String>,
    /// Its endpoint in this step; empty before the first reply.
    endpoint: String,
    opened: Instant,
}

/// A flow after a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Observed {
    /// Everything that decides: the flows it was opened with, and the endpoints it has had.
    pub(crate) key: String,
    pub(crate) protocol: Protocol,
    /// It is a TCP connection that was not established before the step.
    pub(crate) half_open: bool,
    /// The state of its endpoint; without one, none.
    pub(crate) state: Option<State>,
    /// Its endpoint is on another node, and policy Local is for the flow.
    pub(crate) elsewhere: bool,
    /// Its endpoint drops what starts a flow.
    pub(crate) muted: bool,
    /// Its endpoint is the one it had before the step.
    pub(crate) stays: bool,
    pub(crate) reply: String,
}

/// What differs for flows with equal pasts.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) reference: BTreeSet<Observed>,
    pub(crate) shunt: BTreeSet<Observed>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.reference.first().map_or("", |observed| &observed.key);
        writeln!(f, "{key}:")?;
        for (name, observed) in [("kube-proxy", &self.reference), ("shunt", &self.shunt)] {
            for Observed { half_open, state, elsewhere, muted, stays, reply, .. } in observed {
                writeln!(
                    f,
                    "  {name}: endpoint {state:?}, elsewhere {elsewhere}, muted {muted}, \
                     stays {stays}: {reply} (half open before: {half_open})"
                )?;
            }
        }
        Ok(())
    }
}

/// Compares flows with equal pasts.
pub(crate) fn differences(reference: &[Observed], shunt: &[Observed]) -> Vec<Difference> {
    let by_key = |observed: &[Observed]| {
        let mut groups: BTreeMap<(String, bool), BTreeSet<Observed>> = BTreeMap::new();
        for one in observed {
            let key = (one.key.clone(), one.half_open);
            groups.entry(key).or_default().insert(one.clone());
        }
        groups
    };
    let mut shunt = by_key(shunt);
    let pairs = by_key(reference).into_iter().filter_map(|(key, reference)| {
        shunt.remove(&key).map(|shunt| Difference { reference, shunt })
    });
    pairs.filter(Difference::is_one).collect()
}

impl Difference {
    fn is_one(&self) -> bool {
        let states = |observed: &BTreeSet<Observed>| {
            // Whether a new endpoint is the old one again is chance, as long as that is allowed.
            observed
                .iter()
                .map(|observed| (observed.state, observed.elsewhere))
                .collect::<BTreeSet<_>>()
        };
        if states(&self.reference) != states(&self.shunt) {
            return true;
        }
        // Whether an endpoint is muted is chance; the reply then is not.
        let replies = |observed: &BTreeSet<Observed>| {
            let mut replies: BTreeMap<(Option<State>, bool), BTreeSet<String>> = BTreeMap::new();
            for one in observed {
                let reply = replies.entry((one.state, one.muted)).or_default();
                reply.insert(one.reply.clone());
            }
            replies
        };
        let shunt = replies(&self.shunt);
        replies(&self.reference)
            .iter()
            .any(|(key, reply)| shunt.get(key).is_some_and(|other| other != reply))
    }
}

/// Compares after each of many random steps.
pub(crate) fn packet_sequences(kubernetes: &Kubernetes) -> Result<()> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let steps = number("SHUNT_PARITY_STEPS");
    let seed = seed(if steps.is_some() { None } else { Some(SEED) })?;
    let steps = steps.map_or(STEPS, |steps| steps as usize);
    say(&format!("SHUNT_SEED={seed} SHUNT_PARITY_STEPS={steps}"))?;
    let world = World::new(kubernetes)?;
    play(&world, seed, steps).with_context(|| format!("SHUNT_SEED={seed}"))
}

/// Writes a line also where the harness keeps the output of tests that pass.
pub(crate) fn say(line: &str) -> Result<()> {
    nix::unistd::write(std::io::stderr(), format!("{line}\n").as_bytes())?;
    Ok(())
}

/// Plays the steps that follow from a seed.
pub(crate) fn play(world: &World<'_>, seed: u64, steps: usize) -> Result<()> {
    let mut sides = Vec::new();
    for side in world.sides() {
        sides.push(Clients::new(side)?);
    }
    let mut random = Random::new(seed);
    let mut objects = Objects::new();
    objects.put(world)?;
    let mut history = vec![String::new()];
    let mut compared = 0;
    let mut meant = BTreeSet::new();
    for step in 0..steps {
        let batch = Batch::random(step, &mut random);
        for clients in &mut sides {
            clients.open(batch)?;
        }
        // New flows first meet the objects that there are.
        compared += compare(&mut sides, &objects, SHORT, &history, &mut meant)?;
        history.push(format!("step {step}: {batch}; {}", objects.change(&mut random)));
        objects.put(world)?;
        compared += compare(&mut sides, &objects, LONG, &history, &mut meant)?;
        if env::var_os("SHUNT_PARITY_VERBOSE").is_some() {
            let last = history.last().map_or("", |last| last.as_str());
            say(&format!("seed {seed}, {last}: {compared} compared"))?;
        }
    }
    if env::var_os("SHUNT_PARITY_VERBOSE").is_some() {
        meant.iter().try_for_each(|reason| say(&format!("seed {seed}, meant: {reason}")))?;
    }
    ensure!(compared > steps, "only {compared} comparisons: {history:#?}");
    Ok(())
}

fn observe(
    sides: &mut [Clients<'_>],
    objects: &Objects,
    timeout: Duration,
) -> Result<[Vec<Observed>; 2]> {
    let observed: Vec<Result<Vec<Observed>>> = thread::scope(|scope| {
        let asked =
            sides.iter_mut().map(|clients| scope.spawn(move || clients.observe(objects, timeout)));
        let asked: Vec<_> = asked.collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        asked.into_iter().map(join).collect()
    });
    let mut observed = observed.into_iter();
    let mut next = || observed.next().context("two sides")?;
    Ok([next()?, next()?])
}

/// Asks until no flow differs for a reason that is not meant, and fails if that lasts. Returns how
/// many flows of the reference had an equal.
fn compare(
    sides: &mut [Clients<'_>],
    objects: &Objects,
    timeout: Duration,
    history: &[String],
    meant: &mut BTreeSet<&'static str>,
) -> Result<usize> {
    let start = Instant::now();
    sides.iter_mut().for_each(Clients::begin);
    let mut timeout = timeout;
    loop {
        let [reference, shunt] = observe(sides, objects, timeout)?;
        let mut found = Vec::new();
        for difference in differences(&reference, &shunt) {
            match exceptions::reason_of_flow(&difference, objects) {
                Some(reason) => drop(meant.insert(reason)),
                None => found.push(difference.to_string()),
            }
        }
        if found.is_empty() {
            sides.iter_mut().for_each(Clients::end);
            let keys: BTreeSet<&String> = shunt.iter().map(|observed| &observed.key).collect();
            return Ok(reference.iter().filter(|observed| keys.contains(&observed.key)).count());
        }
        ensure!(
            start.elapsed() < patience(LASTING),
            "{}\n{objects:?}\n{}",
            found.join(""),
            history.join("\n")
        );
        timeout = 2 * LONG;
    }
}

/// The flows of one side.
struct Clients<'a> {
    side: &'a Side,
    kept: Vec<Kept>,
    /// How long a half-open connection is watched.
    half_open: Duration,
}

impl<'a> Clients<'a> {
    /// With an address for each flow of a batch, as session affinity goes by addresses.
    fn new(side: &'a Side) -> Result<Self> {
        let client = &side.lab.client;
        for number in 1..FLOWS {
            client.ip(&format!(
                "addr add 192.0.2.{}/24 dev eth0\naddr add 2001:db8:2::1:{number:x}/64 dev eth0 nodad",
                100 + number
            ))?;
        }
        let mut half_open = Duration::MAX;
        for host in [client, &side.lab.node] {
            host.sysctl(&[("net/ipv4/tcp_syn_retries", "100")])?;
            // Since Linux 6.5.
            if host.sysctl(&[("net/ipv4/tcp_syn_linear_timeouts", "100")]).is_err() {
                half_open = HALF_OPEN;
            }
        }
        Ok(Self { side, kept: Vec::new(), half_open })
    }

    fn open(&mut self, batch: Batch) -> Result<()> {
        let lab = &self.side.lab;
        let host = if batch.from_node { &lab.node } else { &lab.client };
        let flows = host.run(|| {
            let flow = |number: usize| {
                let source: IpAddr = match (batch.from_node, batch.to.is_ipv4(), number) {
                    (true, true, _) => lab.node.ipv4[0].into(),
                    (true, false, _) => lab.node.ipv6[0].into(),
                    (false, true, _) => format!("192.0.2.{}", 100 + number).parse()?,
                    (false, false, 0) => lab.client.ipv6[0].into(),
                    (false, false, _) => format!("2001:db8:2::1:{number:x}").parse()?,
                };
                Flow::open(batch.protocol, (source, 0), batch.to)
            };
            (0..FLOWS).map(flow).collect::<Result<Vec<Flow>>>()
        })?;
        let opened = Instant::now();
        let kept = |flow| Kept {
            batch,
            flow,
            half_open: false,
            history: Vec::new(),
            endpoint: String::new(),
            opened,
        };
        self.kept.retain(|kept| kept.batch.id + BATCHES > batch.id);
        self.kept.extend(flows.into_iter().map(kept));
        Ok(())
    }

    /// Begins a step: what is over was compared in the one before.
    fn begin(&mut self) {
        let half_open = self.half_open;
        self.kept.retain(|kept| {
            !kept.flow.is_over() && (!kept.flow.is_half_open() || kept.opened.elapsed() < half_open)
        });
        for kept in &mut self.kept {
            kept.half_open = kept.flow.is_half_open();
            kept.endpoint.clear();
        }
    }

    /// Ends a step: the endpoints of now belong to the past of the flows.
    fn end(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.history.push(kept.endpoint.clone()));
    }

    fn observe(&mut self, objects: &Objects, timeout: Duration) -> Result<Vec<Observed>> {
        let mut flows: Vec<&mut Flow> = self.kept.iter_mut().map(|kept| &mut kept.flow).collect();
        Flow::ask_all(&mut flows, patience(timeout))?;
        let endpoints = endpoints(self.side)?;
        let observe = |kept: &mut Kept| {
            let Kept { batch, flow, half_open, history, .. } = kept;
            let tuple = (flow.protocol(), flow.source, flow.to);
            let tracked = endpoints.get(&tuple).map_or("-", |endpoint| endpoint);
            // The entry of a connection that is over goes by itself.
            let asked_before = flow.is_over() && !kept.endpoint.is_empty();
            let endpoint = if asked_before { kept.endpoint.clone() } else { tracked.to_owned() };
            let endpoint = endpoint.as_str();
            let reply = match &flow.reply {
                Some(Outcome::Reached { server, .. }) => {
                    match server.split(':').next() == Some(endpoint) {
                        true => "answered".to_owned(),
                        false => format!("answered by {server}, not {endpoint}"),
                    }
                }
                Some(outcome) if outcome.is_refused() => "refused".to_owned(),
                Some(outcome) => outcome.to_string(),
                None => "silence".to_owned(),
            };
            let pod = PODS.iter().position(|pod| *pod == endpoint);
            let observed = Observed {
                key: format!("{batch} with {history:?}"),
                protocol: batch.protocol,
                half_open: *half_open,
                state: objects.state(endpoint),
                elsewhere: endpoint == "pod-3" && objects.local && batch.is_external(),
                muted: pod.is_some_and(|pod| objects.muted[pod]),
                stays: history.last().is_some_and(|last| last == endpoint),
                reply,
            };
            kept.endpoint = endpoint.to_owned();
            observed
        };
        Ok(self.kept.iter_mut().map(observe).collect())
    }
}

/// The endpoint of every flow that the node tracks, by its protocol, source and destination.
fn endpoints(side: &Side) -> Result<BTreeMap<(Protocol, SocketAddr, SocketAddr), &str>> {
    let mut endpoints = BTreeMap::new();
    for family in ["ipv4", "ipv6"] {
        let list = side.lab.node.output("conntrack", &["-L", "-f", family])?;
        for line in list.lines() {
            let protocol = match line.split_whitespace().next() {
                Some("tcp") => Protocol::Tcp,
                Some("udp") => Protocol::Udp,
                _ => continue,
            };
            let values = |name: &str| {
                let name = format!("{name}=");
                let words = line.split_whitespace();
                words.filter_map(|word| word.strip_prefix(&name)).map(str::to_owned).collect()
            };
            let [ips, to, from_ports, ports]: [Vec<String>; 4] =
                ["src", "dst", "sport", "dport"].map(values);
            let socket = |ip: &str, port: &str| -> Result<SocketAddr> {
                Ok(SocketAddr::new(ip.parse()?, port.parse()?))
            };
            let [original, reply] = &ips[..] else { continue };
            let source = socket(original, &from_ports[0])?;
            let destination = socket(&to[0], &ports[0])?;
            let reply: IpAddr = reply.parse()?;
            let lab = &side.lab;
            let pods = lab.pods();
            if let Some(pod) = pods.into_iter().find(|pod| pod.ips().any(|ip| ip == reply)) {
                endpoints.insert((protocol, source, destination), pod.name.as_str());
            }
        }
    }
    Ok(endpoints)
}
