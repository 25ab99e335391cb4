//! The addresses of node ports, loopback included.

use super::*;

/// kube-proxy's iptables mode has none there either.
#[test]
fn localhost_node_ports_that_are_off_outweigh_a_loopback_prefix() {
    let rest = "iptables: {localhostNodePorts: false}\nnodePortAddresses: [all, localhost]";
    let Loaded { config, problems, .. } = of_file(rest).unwrap();
    assert_eq!(config.options.loopback_node_ports, LoopbackNodePorts { v4: false, v6: true });
    assert_eq!(
        texts(&problems),
        ["config.conf:4: nodePortAddresses: iptables.localhostNodePorts is false: node ports are \
             not on 127.0.0.1"]
    );
}

#[test]
fn mode_ipvs_has_node_ports_on_localhost_by_a_loopback_prefix_only() {
    for (rest, expected) in [
        ("mode: ipvs", LoopbackNodePorts::default()),
        (
            "mode: ipvs\nnodePortAddresses: [10.0.0.0/8, '::1/128']",
            LoopbackNodePorts { v4: false, v6: true },
        ),
    ] {
        let Loaded { config, full, .. } = of_file(rest).unwrap();
        assert_eq!(config.options.loopback_node_ports, expected, "{rest}");
        assert_round_trip(&config, &full);
    }
}

#[test]
fn mode_iptables_is_told_how_to_keep_node_ports_on_localhost() {
    let said = |rest: &str| texts(&of_file(rest).unwrap().problems).concat();
    assert!(said("mode: iptables").contains("[0.0.0.0/0, '::/0', 127.0.0.0/8] to keep node ports on every local address and on 127.0.0.1;"));
    let off = said("mode: iptables\niptables: {localhostNodePorts: false}");
    assert!(
        off.contains("[0.0.0.0/0, '::/0'] to keep node ports on every local address;"),
        "{off}"
    );
}

#[test]
fn a_family_without_node_port_addresses_is_said_in_clusters_of_both() {
    let said = |rest: &str| texts(&of_file(rest).unwrap().problems);
    let both = "clusterCIDR: 10.0.0.0/8,fd00::/8";
    assert_eq!(said(both), [""; 0]);
    assert_eq!(said(&format!("{both}\nnodePortAddresses: [10.0.0.0/8, 'fd00::/8']")), [""; 0]);
    assert_eq!(said("clusterCIDR: 10.0.0.0/8\nnodePortAddresses: [10.0.0.0/8]"), [""; 0]);
    assert_eq!(
        said(&format!("{both}\nnodePortAddresses: [10.0.0.0/8]")),
        ["config.conf:4: nodePortAddresses: of one family only, while clusterCIDR has both; \
             node ports of the other family are on all addresses; write prefixes for it, \
             too"]
    );
}
