//! Settings that change what becomes of packets.

use anyhow::{Context, Result, ensure};
use shunt_fake_apiserver::Kubernetes;
use shunt_testbed::{EndpointSlice, Protocol, Service};

use crate::world::{CLUSTER_CIDR, World};

/// Each with the settings that it needs beside it.
const SETTINGS: [(&str, bool); 17] = [
    ("", false),
    ("clusterCIDR: 10.244.0.0/16\n", false),
    ("clusterCIDR: 10.244.0.0/24,fd00:244::/64\n", false),
    ("detectLocalMode: NodeCIDR\n", false),
    ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: veth-pod-1}\n", false),
    ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth-}\n", false),
    (
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth-pod-2}\n",
        false,
    ),
    ("nftables: {masqueradeAll: true, minSyncPeriod: 1ms}\n", true),
    ("nftables: {masqueradeBit: 31, minSyncPeriod: 1ms}\n", true),
    ("nodePortAddresses: [primary]\n", true),
    ("nodePortAddresses: [0.0.0.0/0]\n", true),
    ("nodePortAddresses: [192.0.2.11/32]\n", true),
    ("nodePortAddresses: [192.0.2.0/24, '2001:db8:2::11/128']\n", true),
    // No address. (A loopback prefix asks for a proxy, which this kube-proxy does not have yet.)
    ("nodePortAddresses: [198.51.100.0/24, 'fd99::/64']\n", true),
    ("nodePortAddresses: ['::/0', 10.0.0.0/8]\n", true),
    ("bindAddress: 192.0.2.11\n", true),
    ("bindAddress: '2001:db8:2::11'\n", true),
];

/// The pairs of internal and external policies, with the numbers of their Services.
const POLICIES: [(u16, &str, &str); 4] = [
    (11, "Cluster", "Cluster"),
    (12, "Local", "Local"),
    (13, "Cluster", "Local"),
    (14, "Local", "Cluster"),
];

/// Every kind of frontend and policy, under each of these settings.
pub(crate) fn configurations(kubernetes: &Kubernetes) -> Result<()> {
    let wanted = std::env::var("SHUNT_PARITY_SETTINGS").unwrap_or_default();
    let selected: Vec<_> =
        SETTINGS.into_iter().filter(|(text, _)| text.contains(&wanted)).collect();
    ensure!(!selected.is_empty(), "SHUNT_PARITY_SETTINGS={wanted:?} selects no configuration");
    for (settings, pods_known) in selected {
        let settings = format!("{settings}{}", if pods_known { CLUSTER_CIDR } else { "" });
        kubernetes.clear()?;
        let world = World::configured(kubernetes, &settings).context(settings.clone())?;
        put_services(&world)?;
        world.compare(settings.lines().next().unwrap_or_default())?;
    }
    Ok(())
}

/// What the Node says about its addresses.
pub(crate) fn addresses_of_the_node(kubernetes: &Kubernetes) -> Result<()> {
    let nodes: [&[(&str, &str)]; 5] = [
        &[("InternalIP", "192.0.2.11")],
        &[("InternalIP", "2001:db8:2::11"), ("InternalIP", "192.0.2.10")],
        &[("ExternalIP", "192.0.2.10"), ("InternalIP", "192.0.2.11"), ("Hostname", "node-1")],
        &[("ExternalIP", "192.0.2.11"), ("ExternalIP", "2001:db8:2::11")],
        &[("InternalIP", "192.0.2.11"), ("InternalIP", "192.0.2.10")],
    ];
    for addresses in nodes {
        kubernetes.clear()?;
        let world = World::with_addresses(kubernetes, CLUSTER_CIDR, addresses)?;
        put_services(&world)?;
        world.compare(&format!("{addresses:?}"))?;
    }
    Ok(())
}

/// Every kind of frontend and policy.
fn put_services(world: &World<'_>) -> Result<()> {
    let lab = &world.shunt.lab;
    for (number, internal, external) in POLICIES {
        let name = format!("s{number}");
        world.put(
            Service::everywhere(&name, number)
                .spec(&format!("internalTrafficPolicy: {internal}"))
                .spec(&format!("externalTrafficPolicy: {external}"))
                .spec("loadBalancerSourceRanges: [192.0.2.100/32, 10.244.0.0/16, 192.0.2.10/31]"),
        )?;
        world.put(EndpointSlice::of(&name, &lab.pods()))?;
    }
    for (name, number, hosts) in
        [("nowhere", 15, &[][..]), ("there", 16, &[&lab.pod3]), ("node", 17, &[&lab.node])]
    {
        world.put(Service::everywhere(name, number).spec("externalTrafficPolicy: Local"))?;
        world.put(EndpointSlice::of(name, hosts))?;
    }
    let own = Service::new("own").cluster_ips(&["10.96.7.7"]).port("tcp", Protocol::Tcp, 99);
    world.put(own.external_ips(&["192.0.2.11"]))?;
    world.put(EndpointSlice::of("own", &[&lab.pod1, &lab.pod3]))?;
    Ok(())
}
