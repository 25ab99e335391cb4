//! The table of scenarios, and what they are tried on.

use std::fmt::{self, Display, Write};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result};
use shunt_testbed::{Agent, EndpointSlice, Host, Protocol};

use crate::world::{TARGET, World, cluster_ip_service};

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    AffinityOfNodeAndPods,
    AffinityOutlivesChanges,
    AffinityTimesOut,
    AffinityIsRefreshed,
    AffinityLeavesDeadEndpoints,
    AffinityFollowsPolicy,
    AffinityHalfOpen,
    Balance,
    Conflict,
    ConnectionStays,
    Established,
    FallbackCluster,
    FallbackLocal,
    FallbackShortCircuit,
    FlowEnds,
    FlowFirst,
    FlowLeaves,
    FlowStays,
    HalfOpen,
    Hints,
    HintsLocal,
    Lifecycle,
    ManyEndpoints,
    RelabelledSlice,
    Slices,
}

use Frontend::{ClusterIp, ExternalIp, NodePort, Vip};
use Protocol::{Sctp, Tcp, Udp};

const PROTOCOLS: &[Protocol] = &[Tcp, Udp, Sctp];
const FRONTENDS: &[Frontend] = &[ClusterIp, NodePort, Vip, ExternalIp];
/// Those that are governed by `externalTrafficPolicy`.
const EXTERNAL: &[Frontend] = &[NodePort, Vip, ExternalIp];

impl Scenario {
    /// The table; each row holds for IPv4 and IPv6.
    fn row(self) -> (&'static [Protocol], &'static [Frontend]) {
        match self {
            Self::AffinityOfNodeAndPods => (PROTOCOLS, FRONTENDS),
            Self::AffinityOutlivesChanges => (PROTOCOLS, FRONTENDS),
            Self::AffinityTimesOut => (PROTOCOLS, FRONTENDS),
            Self::AffinityIsRefreshed => (PROTOCOLS, FRONTENDS),
            Self::AffinityLeavesDeadEndpoints => (PROTOCOLS, FRONTENDS),
            Self::AffinityFollowsPolicy => (PROTOCOLS, EXTERNAL),
            // An SCTP entry without an answer expires before the INIT is sent again.
            Self::AffinityHalfOpen => (&[Tcp, Udp], FRONTENDS),
            Self::Balance => (PROTOCOLS, &[ClusterIp]),
            Self::Conflict => (PROTOCOLS, FRONTENDS),
            // SCTP associations of the testbed end with their handshake.
            Self::ConnectionStays => (&[Tcp, Sctp], FRONTENDS),
            Self::Established => (&[Tcp], FRONTENDS),
            Self::FallbackCluster => (PROTOCOLS, FRONTENDS),
            Self::FallbackLocal => (PROTOCOLS, FRONTENDS),
            Self::FallbackShortCircuit => (PROTOCOLS, EXTERNAL),
            // Connection tracking keeps flows alive that never end by themselves: UDP.
            Self::FlowEnds | Self::FlowFirst | Self::FlowLeaves | Self::FlowStays => {
                (&[Udp], FRONTENDS)
            }
            Self::HalfOpen => (&[Tcp], FRONTENDS),
            Self::Hints => (PROTOCOLS, FRONTENDS),
            Self::HintsLocal => (PROTOCOLS, FRONTENDS),
            Self::Lifecycle => (PROTOCOLS, FRONTENDS),
            Self::ManyEndpoints => (PROTOCOLS, &[ClusterIp]),
            Self::RelabelledSlice => (PROTOCOLS, FRONTENDS),
            Self::Slices => (PROTOCOLS, FRONTENDS),
        }
    }

    /// Its cells.
    pub(crate) fn cases(self) -> Vec<Case> {
        let (protocols, frontends) = self.row();
        let mut cases = Vec::new();
        for &frontend in frontends {
            for family in [Family::V4, Family::V6] {
                let case = |&protocol| Case { frontend, family, protocol };
                cases.extend(protocols.iter().map(case));
            }
        }
        cases
    }

    /// Checks all cells, so that a failure shows which others fail with it.
    #[track_caller]
    pub(crate) fn check(self, step: &str, check: impl Fn(Case) -> Result<()>) -> Result<()> {
        let mut failed = String::new();
        for case in self.cases() {
            match catch_unwind(AssertUnwindSafe(|| check(case))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => writeln!(failed, "  {case}: {error:#}")?,
                Err(_) => writeln!(failed, "  {case}: see above")?,
            }
        }
        assert!(failed.is_empty(), "{self:?}, {step}: cells that do not hold:\n{failed}");
        Ok(())
    }
}

/// One of the ways to reach the Service [`web`](crate::world::web).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frontend {
    ClusterIp,
    NodePort,
    Vip,
    ExternalIp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// As in `ip shunt`.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// The one of two.
    pub(crate) fn of<T>(self, v4: T, v6: T) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) frontend: Frontend,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
}

impl Case {
    /// Where [`web`](crate::world::web) has this frontend.
    pub(crate) fn address(self) -> Result<SocketAddr> {
        let text = match self.frontend {
            ClusterIp => self.family.of("10.96.0.10:80", "[fd00:96::10]:80"),
            NodePort => self.family.of("192.0.2.10:30080", "[2001:db8:2::10]:30080"),
            Vip => self.family.of("203.0.113.10:80", "[2001:db8:113::10]:80"),
            ExternalIp => self.family.of("198.51.100.10:80", "[2001:db8:51::10]:80"),
        };
        text.parse().with_context(|| format!("not an address: {text}"))
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {}", self.frontend, self.family, self.protocol)
    }
}

/// An agent for the world with what follows changes closely.
pub(crate) struct Changes {
    agent: Option<Agent>,
    marks: std::cell::Cell<u8>,
}

impl Changes {
    pub(crate) fn start(world: &World) -> Result<Self> {
        Ok(Self { agent: Some(world.start()?), marks: std::cell::Cell::new(0) })
    }

    pub(crate) fn agent(&self) -> Result<&Agent> {
        self.agent.as_ref().context("the agent is down")
    }

    /// Waits until all that was written before this is in the kernel: files are read in the order
    /// of their changes, so once a Service written now is there, they are.
    pub(crate) fn settle(&self, world: &World) -> Result<()> {
        let mark = self.marks.get() + 1;
        self.marks.set(mark);
        let ips = [format!("10.96.255.{mark}"), format!("fd00:96::f:{mark:x}")];
        let marker = cluster_ip_service("marker", &[&ips[0], &ips[1]]);
        world.manifests.write("zz-marker.yaml", marker)?;
        let client = world.lab.from(&world.lab.client);
        for to in [format!("{}:80", ips[0]), format!("[{}]:80", ips[1])] {
            client.tcp(to).times(1).eventually().refused();
        }
        Ok(())
    }

    /// Writes a file and waits until that is in the kernel.
    pub(crate) fn write(&self, world: &World, file: &str, content: impl Display) -> Result<()> {
        world.manifests.write(file, content)?;
        self.settle(world)
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.agent.take().context("the agent is down")?.kill()
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self, world: &World) -> Result<()> {
        self.agent = Some(world.start()?);
        Ok(())
    }
}

/// Conditions of an endpoint.
pub(crate) const READY: &str = "conditions: {ready: true}";
pub(crate) const UNREADY: &str = "conditions: {ready: false, serving: false, terminating: false}";
pub(crate) const SERVING: &str = "conditions: {ready: false, serving: true, terminating: true}";
/// As with `publishNotReadyAddresses`: ready counts, although the pod terminates.
pub(crate) const PUBLISHED: &str = "conditions: {ready: true, serving: true, terminating: true}";
pub(crate) const DYING: &str = "conditions: {ready: false, serving: false, terminating: true}";

/// A slice for each family with the ports of [`web`](crate::world::web), and endpoints with these
/// fields; `suffix` tells it from others of the Service.
pub(crate) fn slices_of(service: &str, suffix: &str, endpoints: &[(&Host, &str)]) -> String {
    let slice = |slice: EndpointSlice, family: &str| {
        let slice = slice.name(&format!("{service}-{suffix}-{family}"));
        let slice = PROTOCOLS.iter().fold(slice, |slice, &protocol| {
            slice.port(&protocol.to_string().to_lowercase(), protocol, TARGET)
        });
        endpoints.iter().fold(slice, |slice, (host, fields)| slice.host(host, fields))
    };
    let (v4, v6) = (EndpointSlice::v4(service), EndpointSlice::v6(service));
    format!("{}{}", slice(v4, "v4"), slice(v6, "v6"))
}

/// The host's addresses of a family.
pub(crate) fn addresses(host: &Host, family: Family) -> Vec<IpAddr> {
    host.ips().filter(|ip| ip.is_ipv4() == (family == Family::V4)).collect()
}
