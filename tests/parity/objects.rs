//! Objects of all tests.

use shunt_testbed::{EndpointSlice, Host, Protocol, Service};

use crate::world::TARGET;

/// A Service with every kind of frontend in both families, for TCP and UDP, and with addresses and
/// node ports that follow from its number.
pub(crate) fn full(name: &str, number: u8) -> Service {
    let node_port = 30_000 + u16::from(number) * 10;
    Service::new(name)
        .cluster_ips(&[&format!("10.96.1.{number}"), &format!("fd00:96::1:{number:x}")])
        .spec("ipFamilyPolicy: RequireDualStack")
        .node_port("tcp", Protocol::Tcp, 80, node_port)
        .node_port("udp", Protocol::Udp, 80, node_port)
        .node_port("sctp", Protocol::Sctp, 80, node_port)
        .external_ips(&[&format!("198.51.100.{number}"), &format!("2001:db8:51::{number:x}")])
        .load_balancer(&[&format!("203.0.113.{number}"), &format!("2001:db8:113::{number:x}")])
}

/// Slices of both families for [`full`].
pub(crate) fn slices(service: &str, hosts: &[&Host]) -> String {
    EndpointSlice::pair(service, |slice| {
        slice
            .port("tcp", Protocol::Tcp, TARGET)
            .port("udp", Protocol::Udp, TARGET)
            .port("sctp", Protocol::Sctp, TARGET)
            .hosts(hosts)
    })
}
