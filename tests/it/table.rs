//! The ways to reach a Service.
//! What a scenario file can say is in `tests/scenarios`.

use std::fmt::{self, Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use shunt_testbed::{Protocol, Service};

use crate::world::on_all_protocols;

/// The number of [`web`](crate::world::web).
pub(crate) const WEB: u8 = 10;

/// A kind of frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frontend {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// As in `ip shunt`.
    pub(crate) fn table(self) -> &'static str {
        self.of("ip", "ip6")
    }

    /// The one of two that is of this family.
    pub(crate) fn of<T>(self, v4: T, v6: T) -> T {
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }
}

/// A way to reach a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) frontend: Frontend,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
}

impl Case {
    /// The address and port at which [`web`](crate::world::web) is reached.
    pub(crate) fn address(self) -> SocketAddr {
        self.address_of(WEB)
    }

    /// The same of the Service of this number.
    pub(crate) fn address_of(self, number: u8) -> SocketAddr {
        let port = if self.frontend == Frontend::NodePort { node_port(number) } else { 80 };
        SocketAddr::new(ip(self.frontend, self.family, number), port)
    }
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {}", self.frontend, self.family, self.protocol)
    }
}

/// The ways to reach a Service on which a scenario is tried; each in both families.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    frontends: &'static [Frontend],
    protocols: &'static [Protocol],
}

impl Table {
    /// All of them.
    pub(crate) const ALL: Self = Self {
        frontends: &[
            Frontend::ClusterIp,
            Frontend::ExternalIp,
            Frontend::LoadBalancer,
            Frontend::NodePort,
        ],
        protocols: &Protocol::ALL,
    };

    /// ClusterIPs only.
    pub(crate) const CLUSTER_IPS: Self = Self { frontends: &[Frontend::ClusterIp], ..Self::ALL };

    /// Of these only the ways with one of those protocols.
    pub(crate) const fn on(self, protocols: &'static [Protocol]) -> Self {
        Self { protocols, ..self }
    }

    /// The cells.
    pub(crate) fn cases(self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &frontend in self.frontends {
            for family in Family::ALL {
                let case = |&protocol| Case { frontend, family, protocol };
                cases.extend(self.protocols.iter().map(case));
            }
        }
        cases
    }
}

/// A Service with every kind of frontend, in both families and on all protocols. Its addresses and
/// node port follow from the number.
pub(crate) fn service_of(name: &str, number: u8) -> Service {
    let ips = |frontend| Family::ALL.map(|family| ip(frontend, family, number).to_string());
    let [cluster, external, vip] =
        [Frontend::ClusterIp, Frontend::ExternalIp, Frontend::LoadBalancer].map(ips);
    on_all_protocols(Service::new(name), 80, Some(node_port(number)))
        .cluster_ips(&[&cluster[0], &cluster[1]])
        .external_ips(&[&external[0], &external[1]])
        .load_balancer(&[&vip[0], &vip[1]])
}

pub(crate) const fn node_port(number: u8) -> u16 {
    30_070 + number as u16
}

/// The address of a frontend of [`service_of`]. IPv6 addresses end in the same digits as IPv4 ones.
pub(crate) fn ip(frontend: Frontend, family: Family, number: u8) -> IpAddr {
    let digits = u16::from(number / 10 * 16 + number % 10);
    let v4 = |a, b, c| IpAddr::V4(Ipv4Addr::new(a, b, c, number));
    let v6 = |a, b, c| IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, digits));
    match frontend {
        Frontend::ClusterIp => family.of(v4(10, 96, 0), v6(0xfd00, 0x96, 0)),
        Frontend::ExternalIp => family.of(v4(198, 51, 100), v6(0x2001, 0xdb8, 0x51)),
        Frontend::LoadBalancer => family.of(v4(203, 0, 113), v6(0x2001, 0xdb8, 0x113)),
        Frontend::NodePort => family.of(
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)),
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x10)),
        ),
    }
}
