//! What the kernel says about a packet and its endpoints, beside shunt's tables.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nfnetlink::conntrack::{Connection, Conntrack, Destination, Usage};
use nfnetlink::route::{
    Link, NeighbourState, RouteAnswer, RouteKind, RouteQuery, links, neighbour, prefix_length,
    route_to,
};
use nix::errno::Errno;
use shunt_core::explain::{Code, Entry, Finding, Packet, Tables};
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::{FrontendKey, TABLE};

use super::others::Others;
use super::{Client, Probe, Way};
use crate::dataplane::KernelTables;

/// The pause after which an unanswered connection counts as waiting: a reply takes less.
const REPLY: Duration = Duration::from_millis(40);

/// What the kernel says about a packet.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The number of new connections to the frontend, as its element counts them.
    pub connections: Option<u64>,
    /// The endpoints that the connection may get, in the order of the choices.
    pub endpoints: Vec<EndpointFacts>,
    /// The fill level of connection tracking.
    pub conntrack: Option<ConntrackFacts>,
    /// The verdict of other programs' chains before the translation.
    pub before: Passing,
    /// True if the destination is an address of the node, which gets what no rule translates.
    pub is_for_node: bool,
    /// What became of the first packet that was sent.
    pub probe: Option<Probe>,
    /// What could not be read, and why.
    pub unknown: Vec<String>,
}

/// The fill level of connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackFacts {
    /// The number of entries and the limit.
    pub usage: Usage,
    /// True if the table is full.
    pub is_full: bool,
    /// True if the kernel may evict an entry for a new one. It looks at a few entries only, so that
    /// it may find none.
    pub has_evictable: bool,
}

/// What the kernel says about an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointFacts {
    /// The endpoint.
    pub backend: Backend,
    /// The way to it.
    pub reach: Reach,
    /// Its connections through the frontend.
    pub tracked: Tracked,
    /// The verdict of other programs' chains.
    pub others: Passing,
    /// The packet that was sent to it.
    pub probe: Option<Probe>,
}

/// The way to an endpoint, behind the translation.
#[derive(Debug, Clone, PartialEq)]
pub enum Reach {
    /// The endpoint is the node itself.
    Local,
    /// A route leads to it.
    Route {
        /// The name of the outgoing interface.
        interface: String,
        /// The next router.
        gateway: Option<IpAddr>,
        /// The state of the next hop; `None` if the kernel has not looked for it.
        neighbour: Option<NeighbourState>,
        /// False if the interface is down or has no carrier.
        is_up: bool,
        /// True for a default route by a router.
        is_default: bool,
    },
    /// The kernel does not send the packet on.
    Refused {
        /// The reason.
        reason: String,
        /// True if the client gets an error.
        answers: bool,
    },
    /// Not known.
    Unknown,
}

impl Reach {
    /// Returns the router of the default route, if packets take that.
    #[must_use]
    pub fn default_router(&self) -> Option<IpAddr> {
        match self {
            Reach::Route { gateway, is_default: true, .. } => *gateway,
            _ => None,
        }
    }

    /// Returns why packets do not arrive; `None` if nothing speaks against it.
    #[must_use]
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Reach::Route {
                interface, gateway, neighbour: Some(NeighbourState::Failed), ..
            } => {
                let hop = gateway.map(|gateway| format!("{gateway} ")).unwrap_or_default();
                Some(format!("neighbour {hop}on {interface} does not answer (FAILED)"))
            }
            Reach::Route { interface, is_up: false, .. } => {
                Some(format!("interface {interface} is down"))
            }
            Reach::Refused { reason, .. } => Some(reason.clone()),
            Reach::Route { .. } | Reach::Local | Reach::Unknown => None,
        }
    }
}

/// Tracked connections of a frontend to one endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Connections with a reply.
    pub answered: usize,
    /// Connections without a reply.
    pub unanswered: usize,
    /// The unanswered ones that stayed so for a moment: their first packet is lost or ignored.
    pub waiting: usize,
}

/// What the chains of other programs do with the packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Passing {
    /// All let it pass.
    #[default]
    Passes,
    /// A chain drops it silently.
    Drops(String),
    /// A chain rejects it, and the client gets an error.
    Rejects(String),
    /// A chain may drop it.
    May(String),
    /// A chain may translate it, and then shunt's rules do not see it.
    MayTranslate(String),
    /// A chain excludes it from connection tracking, and then no rule translates it.
    Untracked(String),
}

impl Passing {
    /// Returns the finding that another program does that to `what`, unless all let it pass.
    pub(super) fn finding(&self, what: &str) -> Option<Finding> {
        let (does, by, code) = match self {
            Passing::Passes => return None,
            Passing::Drops(by) => ("drops", by, Code::ForeignDrop),
            Passing::Rejects(by) => ("rejects", by, Code::ForeignDrop),
            Passing::May(by) => ("may drop", by, Code::ForeignDropPossible),
            Passing::MayTranslate(by) => ("may translate", by, Code::ForeignTranslationPossible),
            Passing::Untracked(by) => ("does not track", by, Code::Untracked),
        };
        let mut text = format!("another program {does} {what}: {by}");
        if code == Code::Untracked {
            text += "; no rule translates an untracked packet, and it goes to the address itself";
        }
        Some(Finding::new(code, text))
    }
}

impl Facts {
    /// Reads what the kernel says. `frontend` is the frontend of the packet, and `mark` the packet
    /// mark that asks for masquerading.
    #[must_use]
    pub fn gather(
        packet: &Packet,
        way: &Way,
        frontend: Option<FrontendKey>,
        mark: u32,
        tables: &mut KernelTables,
    ) -> Facts {
        let mut facts = Facts::default();
        if let Some(key) = frontend {
            match tables.connections(key) {
                Ok(connections) => facts.connections = connections,
                Err(error) => facts.unknown.push(format!("counters: {error}")),
            }
        }
        facts.is_for_node = tables.is_local(packet.destination).unwrap_or(false);
        let choices = way.walk.choices();
        let links = links().unwrap_or_else(|error| {
            facts.unknown.push(format!("interfaces: {error}"));
            Vec::new()
        });
        let mut tracked = vec![Tracked::default(); choices.len()];
        match conntrack(packet, way, &mut tracked) {
            Ok(conntrack) => facts.conntrack = Some(conntrack),
            Err(error) => facts.unknown.push(format!("connection tracking: {error}")),
        }
        let mark = if way.walk.marked.is_some() { mark } else { 0 };
        for (choice, tracked) in choices.iter().zip(tracked) {
            let reach = reach(packet, choice.backend, mark, &links);
            let (backend, others) = (choice.backend, Passing::Passes);
            facts.endpoints.push(EndpointFacts { backend, reach, tracked, others, probe: None });
        }
        if let Err(error) = facts.judge_others(packet, mark, &links) {
            facts.before = Passing::May(format!("chains that could not be read: {error}"));
            facts.unknown.push(format!("chains of other programs: {error}"));
        }
        facts
    }

    /// Judges the chains of other programs.
    fn judge_others(
        &mut self,
        packet: &Packet,
        mark: u32,
        links: &[Link],
    ) -> Result<(), nfnetlink::nft::Error> {
        let mut others = Others::list(packet, links)?;
        self.before = others.before(packet)?;
        for EndpointFacts { backend, reach, others: passing, .. } in &mut self.endpoints {
            *passing = others.behind(packet, *backend, reach, mark)?;
        }
        Ok(())
    }

    /// Sends a packet, or as many as it takes until each endpoint has got one.
    ///
    /// # Errors
    /// If none can be sent, or the kernel does not trace it.
    pub fn probe(&mut self, packet: &Packet, client: &Client, all: bool) -> anyhow::Result<()> {
        // The choice is random: so many find each endpoint almost certainly.
        let attempts = if all { 20 + 10 * self.endpoints.len() } else { 1 };
        for _ in 0..attempts {
            let asked =
                |to: SocketAddr| self.endpoints.iter().any(|it| it.probe.is_some() && it.is_at(to));
            let Some(probe) = Probe::send(packet, client, asked)? else { continue };
            if !self.learn(probe) || self.endpoints.iter().all(|it| it.probe.is_some()) {
                break;
            }
        }
        Ok(())
    }

    /// Replaces what may happen by what the kernel did. Returns true if an endpoint got the packet.
    fn learn(&mut self, probe: Probe) -> bool {
        self.probe.get_or_insert_with(|| probe.clone());
        let Some(trace) = &probe.trace else { return false };
        let end = trace.steps.last().filter(|step| step.verdict == "drop");
        let by = || trace.by.clone().unwrap_or_default();
        let passing = match end {
            // What shunt's rules do is known.
            Some(end) if end.table == TABLE => return false,
            Some(_) if trace.outcome == "refused" => Passing::Rejects(by()),
            Some(_) => Passing::Drops(by()),
            None => Passing::Passes,
        };
        let at = |it: &&mut EndpointFacts| trace.backend.is_some_and(|to| it.is_at(to));
        let endpoint = self.endpoints.iter_mut().find(at);
        if let Some(endpoint) = endpoint {
            self.before = Passing::Passes;
            endpoint.others = passing;
            endpoint.probe = Some(probe);
            return true;
        }
        if !matches!(self.before, Passing::Untracked(_)) {
            self.before = passing;
        }
        false
    }
}

impl EndpointFacts {
    fn is_at(&self, to: SocketAddr) -> bool {
        self.backend == Backend { address: to.ip(), port: to.port() }
    }
}

/// Counts the connections of the frontend by endpoint, and reads the fill level.
fn conntrack(
    packet: &Packet,
    way: &Way,
    tracked: &mut [Tracked],
) -> Result<ConntrackFacts, nfnetlink::Error> {
    let mut conntrack = Conntrack::open()?;
    let to = Destination {
        protocol: packet.protocol,
        address: Some(packet.destination),
        port: Some(packet.port),
    };
    let choices = way.walk.choices();
    let place = |connection: &Connection| {
        let (address, port) = (connection.reply.source.ip(), connection.reply.source.port());
        choices.iter().position(|choice| choice.backend == Backend { address, port })
    };
    let mut unanswered = Vec::new();
    if !choices.is_empty() {
        conntrack.connections_to(nfnetlink::Family::of(packet.destination), &to, |connection| {
            let Some(place) = place(&connection) else { return };
            if connection.is_unanswered() {
                tracked[place].unanswered += 1;
                unanswered.push((place, connection));
            } else {
                tracked[place].answered += 1;
            }
        })?;
    }
    if packet.protocol == Protocol::Udp.number() {
        // Some datagrams have no answer, where others have.
        let silent = tracked.iter_mut().filter(|it| it.answered == 0);
        silent.for_each(|it| it.waiting = it.unanswered);
    } else if !unanswered.is_empty() {
        std::thread::sleep(REPLY);
        for (place, connection) in unanswered {
            let again = conntrack.get(connection.protocol, &connection.original)?;
            // An entry that is gone has timed out, or the endpoint has refused.
            let still = again.is_none_or(|it| it.is_unanswered() && it.reply == connection.reply);
            tracked[place].waiting += usize::from(still);
        }
    }
    let usage = conntrack.usage()?;
    let is_full = usage.limit.is_some_and(|limit| limit > 0 && usage.entries >= limit);
    let has_evictable = is_full && has_evictable(&mut conntrack)?;
    Ok(ConntrackFacts { usage, is_full, has_evictable })
}

/// Returns true if the kernel may evict an entry for a new one: one that is not assured
/// (`early_drop_list`).
fn has_evictable(conntrack: &mut Conntrack) -> Result<bool, nfnetlink::Error> {
    use nfnetlink::conntrack::Status;
    let mut found = false;
    for family in [nfnetlink::Family::Ip, nfnetlink::Family::Ip6] {
        conntrack.connections(family, |connection| {
            found |= !connection.status.has(Status::ASSURED);
        })?;
    }
    Ok(found)
}

fn reach(packet: &Packet, backend: Backend, mark: u32, links: &[Link]) -> Reach {
    let input = match &packet.entry {
        Entry::Interface(Some(name)) => links.iter().find(|link| link.name == **name),
        _ => None,
    };
    let input = input.map(|link| link.index);
    let is_own = packet.entry == Entry::Node;
    // Without the interface of arrival, the kernel can judge only packets of the node.
    let source = (is_own || input.is_some()).then_some(packet.source);
    let query = RouteQuery { destination: backend.address, source, input, mark };
    let route = match route_to(query) {
        Ok(RouteAnswer::Route(route)) => route,
        Ok(RouteAnswer::Refused(errno)) => {
            return refusal(errno, backend.address, is_own || forwards(packet));
        }
        Err(_) => return Reach::Unknown,
    };
    match route.kind {
        RouteKind::Local => return Reach::Local,
        RouteKind::Unicast if is_own || forwards(packet) => {}
        RouteKind::Unicast => return forwarding_is_off(),
        other => {
            let reason = format!(
                "the route to {} is of type {}",
                backend.address,
                format!("{other:?}").to_lowercase()
            );
            return Reach::Refused { reason, answers: other != RouteKind::Blackhole };
        }
    }
    let link = links.iter().find(|link| Some(link.index) == route.output);
    let next = route.next_hop(backend.address);
    let neighbour = route.output.and_then(|index| neighbour(next, index).ok().flatten());
    Reach::Route {
        interface: link.map_or_else(|| "?".to_owned(), |link| link.name.clone()),
        gateway: route.gateway,
        is_default: route.gateway.is_some() && prefix_length(query).is_ok_and(|it| it == Some(0)),
        neighbour,
        is_up: link.is_none_or(|link| link.up && link.carrier),
    }
}

/// Returns true if the node forwards packets that arrive there. The kernel's answer about a route
/// says it for IPv4 only.
fn forwards(packet: &Packet) -> bool {
    let file = match (packet.family(), &packet.entry) {
        (Family::V4, Entry::Interface(Some(interface))) => {
            format!("/proc/sys/net/ipv4/conf/{interface}/forwarding")
        }
        (Family::V4, _) => "/proc/sys/net/ipv4/ip_forward".to_owned(),
        (Family::V6, _) => "/proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
    };
    // What cannot be read is no obstacle.
    std::fs::read_to_string(file).map_or(true, |text| text.trim() != "0")
}

fn forwarding_is_off() -> Reach {
    let reason = "this node does not forward packets: set net.ipv4.ip_forward and \
                  net.ipv6.conf.all.forwarding to 1"
        .to_owned();
    Reach::Refused { reason, answers: false }
}

fn refusal(errno: Errno, to: IpAddr, forwards: bool) -> Reach {
    if !forwards {
        return forwarding_is_off();
    }
    let (reason, answers) = match errno {
        Errno::ENETUNREACH => (format!("this node has no route to {to}"), true),
        Errno::EHOSTUNREACH => (format!("the route to {to} is of type unreachable"), true),
        Errno::EACCES => (format!("the route to {to} is of type prohibit"), true),
        Errno::EINVAL | Errno::EXDEV => {
            let reason = format!(
                "the kernel drops packets to {to}: a blackhole route, or the reverse path filter \
                 (net.ipv4.conf.*.rp_filter) does not accept the source on this interface"
            );
            (reason, false)
        }
        other => (format!("the kernel refuses packets to {to}: {}", other.desc()), true),
    };
    Reach::Refused { reason, answers }
}
