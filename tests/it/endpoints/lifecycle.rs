//! The life of a Service: its type, ports, address and label change.

use anyhow::Result;
use shunt_testbed::{EndpointSlice, Protocol, Service};

use super::changes::Changes;
use crate::table::{Case, Frontend, Table};
use crate::world::{TARGET, World, cluster_ip_service, manifest, on_all_protocols, slices, web};

const CLUSTER_IPS: &[&str] = &["10.96.0.10", "fd00:96::10"];

/// What the client finds at a frontend.
#[track_caller]
fn expect(world: &World, step: &str, reached: &[Frontend], server: &str) -> Result<()> {
    Table::ALL.check(step, |case: Case| {
        let probe = world.lab.from(&world.lab.client).probe(case.protocol, case.address());
        let probe = probe.times(2);
        if reached.contains(&case.frontend) {
            drop(probe.reaches(&[server]));
        } else if case.frontend != Frontend::NodePort {
            probe.unhandled();
        } else if case.protocol != Protocol::Sctp {
            // The node's own answer; to SCTP it has none that tells.
            probe.refused();
        }
        Ok(())
    })
}

fn external_name() -> &'static str {
    "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n\
     spec:\n  type: ExternalName\n  externalName: example.org\n  ports: [{name: tcp, port: 80}]\n"
}

fn headless() -> Service {
    on_all_protocols(Service::new("web"), 80, None).cluster_ips(&["None"])
}

#[test]
fn the_type_changes() -> Result<()> {
    use Frontend::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    let world = World::new()?;
    world.manifests.write("slices.yaml", slices("web", &[&world.lab.pod1]))?;
    let changes = Changes::start(&world)?;
    let cluster_ip = || cluster_ip_service("web", CLUSTER_IPS).to_string();
    let node_port = on_all_protocols(Service::new("web"), 80, Some(30080)).cluster_ips(CLUSTER_IPS);
    let steps: [(&str, String, &[Frontend]); 9] = [
        ("ClusterIP", cluster_ip(), &[ClusterIp]),
        ("NodePort", node_port.to_string(), &[ClusterIp, NodePort]),
        ("LoadBalancer", web().to_string(), &[ClusterIp, NodePort, LoadBalancer, ExternalIp]),
        ("ExternalName", external_name().to_owned(), &[]),
        ("LoadBalancer again", web().to_string(), &[ClusterIp, NodePort, LoadBalancer, ExternalIp]),
        ("headless", headless().to_string(), &[]),
        ("NodePort again", node_port.to_string(), &[ClusterIp, NodePort]),
        ("ClusterIP again", cluster_ip(), &[ClusterIp]),
        ("headless again", headless().to_string(), &[]),
    ];
    for (step, manifest, reached) in steps {
        changes.write(&world, "web.yaml", manifest)?;
        expect(&world, step, reached, "pod-1")?;
    }
    Ok(())
}

const ALL: &[Frontend] =
    &[Frontend::ClusterIp, Frontend::NodePort, Frontend::LoadBalancer, Frontend::ExternalIp];

#[test]
fn the_label_of_another_proxy_comes_and_goes() -> Result<()> {
    let world = World::new()?;
    world.manifests.write("slices.yaml", slices("web", &[&world.lab.pod1]))?;
    let changes = Changes::start(&world)?;
    let labelled = || web().label("service.kubernetes.io/service-proxy-name", "other");
    for _ in 0..2 {
        changes.write(&world, "web.yaml", web())?;
        expect(&world, "no label", ALL, "pod-1")?;
        changes.write(&world, "web.yaml", labelled())?;
        expect(&world, "label", &[], "pod-1")?;
    }
    Ok(())
}

#[test]
fn the_service_and_its_slices_come_in_any_order() -> Result<()> {
    let world = World::new()?;
    let changes = Changes::start(&world)?;
    let pod1 = slices("web", &[&world.lab.pod1]);

    changes.write(&world, "slices.yaml", &pod1)?;
    expect(&world, "slices alone", &[], "pod-1")?;
    changes.write(&world, "web.yaml", web())?;
    expect(&world, "the Service after its slices", ALL, "pod-1")?;

    world.manifests.remove("web.yaml")?;
    changes.settle(&world)?;
    expect(&world, "the Service is gone", &[], "pod-1")?;
    changes.write(&world, "web.yaml", web())?;
    expect(&world, "the Service is back", ALL, "pod-1")?;

    world.manifests.remove("slices.yaml")?;
    changes.settle(&world)?;
    Table::ALL.check("no slices", |case| {
        world.lab.from(&world.lab.client).probe(case.protocol, case.address()).refused();
        Ok(())
    })?;
    changes.write(&world, "slices.yaml", slices("web", &[&world.lab.pod2]))?;
    expect(&world, "slices after their Service", ALL, "pod-2")
}

#[test]
fn another_service_gets_the_address() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let other = |service: Service| manifest(&service, "other", &[&lab.pod2]);
    world.manifests.write("web.yaml", manifest(&web(), "web", &[&lab.pod1]))?;
    let changes = Changes::start(&world)?;
    expect(&world, "the first", ALL, "pod-1")?;

    // One goes, then the other comes.
    world.manifests.remove("web.yaml")?;
    let successor = on_all_protocols(Service::new("other"), 80, Some(30080))
        .cluster_ips(CLUSTER_IPS)
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"]);
    changes.write(&world, "other.yaml", other(successor))?;
    expect(&world, "the second", ALL, "pod-2")?;

    // Both at once change places.
    let moved = cluster_ip_service("other", &["10.96.0.20", "fd00:96::20"]);
    let both = format!("{}{}", manifest(&web(), "web", &[&lab.pod1]), other(moved));
    world.manifests.remove("other.yaml")?;
    changes.write(&world, "both.yaml", both)?;
    expect(&world, "the first again", ALL, "pod-1")?;
    for to in ["10.96.0.20:80", "[fd00:96::20]:80"] {
        lab.from(&lab.client).udp(to).reaches(&["pod-2"]);
    }
    Ok(())
}

/// A port is joined to the slices by its name.
#[test]
fn ports_are_renamed() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let changes = Changes::start(&world)?;
    let ports = |name: &'static str| {
        Protocol::ALL.map(move |protocol| (protocol, format!("{name}-{protocol}").to_lowercase()))
    };
    let service = |name| {
        let service = web_without_ports();
        ports(name)
            .iter()
            .fold(service, |s, (protocol, name)| s.node_port(name, *protocol, 80, 30080))
    };
    let slices = |name, pod| {
        EndpointSlice::pair("web", |slice| {
            let named = ports(name);
            named
                .iter()
                .fold(slice, |s, (protocol, name)| s.port(name, *protocol, TARGET))
                .hosts(&[pod])
        })
    };
    let refused = |step: &str| {
        Table::ALL.check(step, |case| {
            lab.from(&lab.client).probe(case.protocol, case.address()).refused();
            Ok(())
        })
    };
    world.manifests.write("slices.yaml", slices("old", &lab.pod1))?;
    changes.write(&world, "web.yaml", service("old"))?;
    expect(&world, "the old name", ALL, "pod-1")?;
    changes.write(&world, "web.yaml", service("new"))?;
    refused("the Service has the new name, the slices the old")?;
    changes.write(&world, "slices.yaml", slices("new", &lab.pod2))?;
    expect(&world, "the new name", ALL, "pod-2")?;
    changes.write(&world, "slices.yaml", slices("old", &lab.pod2))?;
    refused("the slices have the old name, the Service the new")?;
    let both = format!("{}{}", service("old"), slices("old", &lab.pod1));
    world.manifests.remove("slices.yaml")?;
    changes.write(&world, "web.yaml", both)?;
    expect(&world, "the old name again", ALL, "pod-1")
}

fn web_without_ports() -> Service {
    Service::new("web")
        .cluster_ips(CLUSTER_IPS)
        .external_ips(&["198.51.100.10", "2001:db8:51::10"])
        .load_balancer(&["203.0.113.10", "2001:db8:113::10"])
}
