//! What the kernel says about a packet and its endpoints, beside shunt's tables.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use nfnetlink::conntrack::{Conntrack, Destination, Usage};
use nfnetlink::route::{
    Link, NeighbourState, Route, RouteAnswer, RouteKind, RouteQuery, links, neighbour,
    prefix_length, route_to,
};
use nix::errno::Errno;
use shunt_core::explain::{Packet, Tables, Walk};
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::TABLE;

use super::others::{Others, Passing};
use super::{Probe, Verdict};
use crate::dataplane::KernelTables;

/// The pause after which an unanswered connection counts as waiting: a reply takes less.
const REPLY: Duration = Duration::from_millis(40);

/// What the kernel says about a packet.
#[derive(Debug, Clone, Default)]
pub struct PacketFacts {
    /// The number of new connections to the frontend, as its element counts them.
    pub connections: Option<u64>,
    /// The endpoints that the connection may get, in the order of the choices.
    pub endpoints: Vec<EndpointFacts>,
    /// The fill level of connection tracking.
    pub conntrack: Option<Usage>,
    /// The verdict of other programs' chains before the translation.
    pub before: Passing,
    /// True if the destination is an address of the node, which gets what no rule translates.
    pub is_for_node: bool,
    /// What became of the first packet that was sent.
    pub probe: Option<Probe>,
    /// What could not be read, and why.
    pub unknown: Vec<String>,
}

/// What the kernel says about an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointFacts {
    /// The endpoint.
    pub backend: Backend,
    /// The way to it.
    pub reach: Reach,
    /// Tracked connections through the frontend with a reply.
    pub answered: usize,
    /// Those without a reply.
    pub unanswered: usize,
    /// Those that stayed so for a moment: their first packet is lost or ignored.
    pub waiting: usize,
    /// The verdict of other programs' chains.
    pub others: Passing,
    /// The packet that was sent to it.
    pub probe: Option<Probe>,
}

/// The way to an endpoint, behind the translation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reach {
    /// The way as text; `None` if it is not known.
    pub route: Option<String>,
    /// The endpoint is the node itself.
    pub is_local: bool,
    /// The interface by which packets leave, if any do.
    pub output: Option<String>,
    /// The router of the default route, if packets take that.
    pub default_router: Option<IpAddr>,
    /// Why packets do not arrive, and what becomes of them; `None` if nothing speaks against it.
    pub obstacle: Option<(String, Verdict)>,
}

impl Reach {
    fn refused(reason: String, answers: bool) -> Reach {
        let verdict = if answers { Verdict::Refused } else { Verdict::Dropped };
        Reach { route: Some(reason.clone()), obstacle: Some((reason, verdict)), ..Reach::default() }
    }
}

impl PacketFacts {
    /// Reads what the kernel says. `mark` is the packet mark that asks for masquerading.
    #[must_use]
    pub fn gather(
        packet: &Packet,
        way: &Walk,
        mark: u32,
        tables: &mut KernelTables,
    ) -> PacketFacts {
        let mut facts = PacketFacts::default();
        for key in [packet.node_port_key(), packet.address_key()].into_iter().flatten() {
            match tables.connections(key) {
                Ok(connections) => facts.connections = connections.or(facts.connections),
                Err(error) => facts.unknown.push(format!("counters: {error}")),
            }
        }
        facts.is_for_node = tables.is_local(packet.destination).unwrap_or(false);
        let links = links().unwrap_or_else(|error| {
            facts.unknown.push(format!("interfaces: {error}"));
            Vec::new()
        });
        let mark = if way.marked.is_some() { mark } else { 0 };
        facts.endpoints.extend(way.choices().iter().map(|choice| EndpointFacts {
            backend: choice.backend,
            reach: reach(packet, choice.backend, mark, &links),
            answered: 0,
            unanswered: 0,
            waiting: 0,
            others: Passing::Passes,
            probe: None,
        }));
        match conntrack(packet, &mut facts.endpoints) {
            Ok(conntrack) => facts.conntrack = Some(conntrack),
            Err(error) => facts.unknown.push(format!("connection tracking: {error}")),
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
            *passing =
                others.behind(packet, *backend, (reach.is_local, reach.output.as_deref()), mark)?;
        }
        Ok(())
    }

    /// Sends a packet, or as many as it takes until each endpoint has got one.
    ///
    /// # Errors
    /// If none can be sent, or the kernel does not trace it.
    pub fn probe(
        &mut self,
        packet: &Packet,
        namespace: Option<&Path>,
        all: bool,
    ) -> anyhow::Result<()> {
        // The choice is random: so many find each endpoint almost certainly.
        let attempts = if all { 20 + 10 * self.endpoints.len() } else { 1 };
        for _ in 0..attempts {
            let asked = |to| self.endpoints.iter().any(|it| it.probe.is_some() && it.is_at(to));
            let probe = Probe::send(packet, namespace, asked)?;
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
        let at = |it: &&mut EndpointFacts| trace.backend.is_some_and(|to| it.is_at(to));
        let endpoint = self.endpoints.iter_mut().find(at);
        // Its first packet counts: the client does not wait for others.
        if endpoint.as_ref().is_some_and(|it| it.probe.is_some()) {
            return true;
        }
        let end = trace.steps.last().filter(|step| step.verdict == "drop");
        let by = || trace.by.clone().unwrap_or_default();
        let passing = match end {
            // What shunt's rules do is known.
            Some(end) if end.table == TABLE => return false,
            Some(_) if trace.outcome == "refused" => Passing::Rejects(by()),
            Some(_) => Passing::Drops(by()),
            None => Passing::Passes,
        };
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
fn conntrack(packet: &Packet, endpoints: &mut [EndpointFacts]) -> Result<Usage, nfnetlink::Error> {
    let mut conntrack = Conntrack::open()?;
    let to = Destination {
        protocol: packet.protocol,
        address: Some(packet.destination),
        port: Some(packet.port),
    };
    let mut unanswered = Vec::new();
    if !endpoints.is_empty() {
        conntrack.connections_to(nfnetlink::Family::of(packet.destination), &to, |connection| {
            let (address, port) = (connection.reply.source.ip(), connection.reply.source.port());
            let is_it = |it: &EndpointFacts| it.backend == Backend { address, port };
            let Some(place) = endpoints.iter().position(is_it) else { return };
            if !connection.answered {
                endpoints[place].unanswered += 1;
                unanswered.push((place, connection));
            } else {
                endpoints[place].answered += 1;
            }
        })?;
    }
    if packet.protocol == Protocol::Udp.number() {
        // Some datagrams have no answer, where others have.
        let silent = endpoints.iter_mut().filter(|it| it.answered == 0);
        silent.for_each(|it| it.waiting = it.unanswered);
    } else if !unanswered.is_empty() {
        std::thread::sleep(REPLY);
        for (place, connection) in unanswered {
            let again = conntrack.get(connection.protocol, &connection.original)?;
            // An entry that is gone has timed out, or the endpoint has refused.
            let still = again.is_none_or(|it| !it.answered && it.reply == connection.reply);
            endpoints[place].waiting += usize::from(still);
        }
    }
    conntrack.usage()
}

fn reach(packet: &Packet, backend: Backend, mark: u32, links: &[Link]) -> Reach {
    let is_input = |link: &&Link| packet.interface.as_deref() == Some(&*link.name);
    let input = links.iter().find(is_input).map(|link| link.index);
    // Without the interface of arrival, the kernel can judge only packets of the node.
    let source = (packet.from_node || input.is_some()).then_some(packet.source);
    let query = RouteQuery { destination: backend.address, source, input, mark };
    let answer = match route_to(query) {
        Ok(answer) => answer,
        Err(_) => return Reach::default(),
    };
    let to = backend.address;
    let (reason, answers) = match answer {
        RouteAnswer::Route(route) if route.kind == RouteKind::Local => {
            return Reach {
                route: Some("on this node itself".to_owned()),
                is_local: true,
                output: Some("lo".to_owned()),
                ..Reach::default()
            };
        }
        _ if !forwards(packet) => {
            let reason = "this node does not forward packets: set net.ipv4.ip_forward and \
                          net.ipv6.conf.all.forwarding to 1";
            (reason.to_owned(), false)
        }
        RouteAnswer::Route(route) if route.kind == RouteKind::Unicast => {
            return by_route(&route, query, links);
        }
        RouteAnswer::Route(_) => {
            (format!("the route to {to} is of type broadcast, anycast or multicast"), true)
        }
        RouteAnswer::Refused(Errno::EINVAL | Errno::EXDEV) => (
            format!(
                "the kernel drops packets to {to}: a blackhole route, or the reverse path filter \
                 (net.ipv4.conf.*.rp_filter) does not accept the source on this interface"
            ),
            false,
        ),
        RouteAnswer::Refused(other) => {
            (format!("routing to {to} refuses packets: {}", other.desc()), true)
        }
    };
    Reach::refused(reason, answers)
}

fn by_route(route: &Route, query: RouteQuery, links: &[Link]) -> Reach {
    let link = links.iter().find(|link| Some(link.index) == route.output);
    let output = link.map_or_else(|| "?".to_owned(), |link| link.name.clone());
    let next = route.next_hop(query.destination);
    let neighbour = route.output.and_then(|index| neighbour(next, index).ok().flatten());
    let via = route.gateway.map(|gateway| format!("via {gateway} ")).unwrap_or_default();
    let state = match neighbour {
        Some(state) => format!("{state:?}").to_uppercase(),
        None => "not resolved yet".to_owned(),
    };
    let obstacle = if neighbour == Some(NeighbourState::Failed) {
        Some(format!("neighbour {next} on {output} does not answer (FAILED)"))
    } else {
        let is_down = link.is_some_and(|link| !(link.up && link.carrier));
        is_down.then(|| format!("interface {output} is down"))
    };
    let is_default = prefix_length(query).is_ok_and(|it| it == Some(0));
    Reach {
        route: Some(format!("{via}dev {output}, neighbour {state}")),
        output: Some(output),
        default_router: route.gateway.filter(|_| is_default),
        obstacle: obstacle.map(|reason| (reason, Verdict::Dropped)),
        ..Reach::default()
    }
}

/// Returns true if the node forwards such packets, or sends them itself. The kernel's answer about a
/// route says it for IPv4 only.
fn forwards(packet: &Packet) -> bool {
    let file = match (packet.family(), &packet.interface) {
        _ if packet.from_node => return true,
        (Family::V4, Some(interface)) => format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"),
        (Family::V4, None) => "/proc/sys/net/ipv4/ip_forward".to_owned(),
        (Family::V6, _) => "/proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
    };
    // What cannot be read is no obstacle.
    std::fs::read_to_string(file).map_or(true, |text| text.trim() != "0")
}
