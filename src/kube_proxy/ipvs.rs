//! kube-proxy's IPVS mode: reading its virtual servers, and removal of its leftovers, by generic
//! netlink and rtnetlink.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use nfnetlink::generic::Generic;
use nfnetlink::ipvs::{Service, services};
use nfnetlink::route::{addresses_of, delete_link};
use shunt_core::model::{Backend, Family, Protocol};
use shunt_core::plan::FrontendKey;

use super::forwarding::{
    Forwarding, Frontend, Mode, NodePortAddresses, Outcome, Settings, Sources,
};
use super::{IPVS_INTERFACE, IPVS_SERVICES, has_ipvs_interface, ipvs_services};

/// `include/uapi/linux/ip_vs.h`.
const IPVS_GENL_NAME: &str = "IPVS";
const IPVS_GENL_VERSION: u8 = 1;
const IPVS_CMD_FLUSH: u8 = 17;

/// The result of [`remove_ipvs`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemovedIpvs {
    /// The number of IPVS services.
    pub services: usize,
    /// True if the interface `kube-ipvs0` existed.
    pub interface: bool,
}

/// Removes all services of IPVS and the interface `kube-ipvs0` from the network namespace of this
/// thread, if the interface exists. Without it, services of IPVS belong to other programs.
///
/// # Errors
/// The error of the kernel. Services may be removed by then.
pub fn remove_ipvs() -> io::Result<RemovedIpvs> {
    if !has_ipvs_interface() {
        return Ok(RemovedIpvs::default());
    }
    // Asking for the family would load the module.
    let services = if std::fs::exists(IPVS_SERVICES)? {
        let services = ipvs_services();
        let mut generic = Generic::open()?;
        let family = generic.family(IPVS_GENL_NAME)?;
        generic.order("flush IPVS", family, IPVS_CMD_FLUSH, IPVS_GENL_VERSION)?;
        services
    } else {
        0
    };
    delete_link(IPVS_INTERFACE)?;
    Ok(RemovedIpvs { services, interface: true })
}

/// Reads the virtual servers; `None` without kube-proxy's interface or the module.
///
/// # Errors
/// The error of the kernel.
pub(super) fn read() -> Result<Option<Forwarding>, nfnetlink::Error> {
    // Asking for the family would load the module.
    if !has_ipvs_interface() || !std::fs::exists(IPVS_SERVICES).unwrap_or(false) {
        return Ok(None);
    }
    let own = addresses_of(IPVS_INTERFACE)?;
    let services = services()?;
    Ok((!services.is_empty()).then(|| forwarding(&services, &own)))
}

/// Returns the forwarding by virtual servers. `own` has the addresses of kube-proxy's interface,
/// which are those of Services: other addresses are the node's, with node ports.
fn forwarding(services: &[Service], own: &BTreeSet<IpAddr>) -> Forwarding {
    let mut frontends = BTreeMap::new();
    let mut node_addresses: BTreeMap<Family, BTreeSet<IpAddr>> = BTreeMap::new();
    for service in services {
        let Some(protocol) = Protocol::from_number(service.protocol) else { continue };
        let family = Family::of(service.address);
        let key = if own.contains(&service.address) {
            FrontendKey::Address(service.address, protocol, service.port)
        } else {
            node_addresses.entry(family).or_default().insert(service.address);
            FrontendKey::NodePort(family, protocol, service.port)
        };
        frontends.entry(key).or_insert_with(|| frontend(service));
    }
    let families = services.iter().map(|service| Family::of(service.address));
    let settings = families.map(|family| {
        let addresses = node_addresses.get(&family).cloned().map(NodePortAddresses::Only);
        (family, Settings { node_port_addresses: addresses, ..Settings::default() })
    });
    Forwarding { mode: Mode::Ipvs, settings: settings.collect(), frontends }
}

fn frontend(service: &Service) -> Frontend {
    let total: f64 = service.destinations.iter().map(|it| f64::from(it.weight)).sum();
    let mut backends = BTreeMap::new();
    for destination in service.destinations.iter().filter(|it| it.weight > 0) {
        let backend = Backend { address: destination.address, port: destination.port };
        *backends.entry(backend).or_default() += f64::from(destination.weight) / total;
    }
    let outcome = match backends.is_empty() {
        // `ip_vs_leave` answers with port unreachable if there is no real server.
        true => Outcome::Reject,
        false => Outcome::Balance(backends),
    };
    Frontend {
        label: None,
        outcome,
        // Sets of ipset, and rules of iptables that refer to them, decide these.
        from_node: None,
        masquerade: None,
        affinity: service.persistence,
        sources: Sources::Unknown,
        unknown: BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use nfnetlink::ipvs::Destination;

    use super::*;

    fn service(address: &str, port: u16, weights: &[u32]) -> Service {
        let destination = |(number, weight): (u8, &u32)| Destination {
            address: IpAddr::from([10, 244, 0, number]),
            port: 8080,
            weight: *weight,
        };
        Service {
            protocol: 6,
            address: address.parse().expect("an address"),
            port,
            scheduler: "rr".to_owned(),
            persistence: None,
            destinations: (1..).zip(weights).map(destination).collect(),
        }
    }

    #[test]
    fn virtual_servers_are_frontends_and_those_of_the_node_are_node_ports() {
        let services = [
            service("10.96.0.10", 80, &[1, 1]),
            service("192.0.2.10", 30080, &[1]),
            service("192.0.2.11", 30080, &[1]),
            service("10.96.0.11", 80, &[]),
            service("10.96.0.12", 80, &[3, 1, 0]),
            service("fd00:96::10", 80, &[]),
        ];
        let own = ["10.96.0.10", "10.96.0.11", "10.96.0.12", "fd00:96::10"];
        let own = own.into_iter().filter_map(|it| it.parse().ok()).collect();
        let read = forwarding(&services, &own);
        let outcomes: Vec<String> = read
            .frontends
            .iter()
            .map(|(key, frontend)| {
                let backends = frontend.outcome.backends();
                let backends: Vec<String> =
                    backends.map(|(it, share)| format!("{}*{share}", it.address)).collect();
                format!("{key} {}", backends.join(" "))
            })
            .collect();
        assert_eq!(
            outcomes,
            [
                "10.96.0.10:80/tcp 10.244.0.1*0.5 10.244.0.2*0.5",
                "10.96.0.11:80/tcp ",
                "10.96.0.12:80/tcp 10.244.0.1*0.75 10.244.0.2*0.25",
                "[fd00:96::10]:80/tcp ",
                "node port 30080/tcp (IPv4) 10.244.0.1*1",
            ]
        );
        let addresses = ["192.0.2.10", "192.0.2.11"].into_iter().filter_map(|it| it.parse().ok());
        let settings = read.settings.get(&Family::V4).expect("settings");
        let expected = NodePortAddresses::Only(addresses.collect());
        assert_eq!(settings.node_port_addresses, Some(expected));
        let v6 = read.settings.get(&Family::V6).expect("settings");
        assert_eq!(v6.node_port_addresses, None);
    }
}
