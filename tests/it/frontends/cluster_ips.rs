//! ClusterIPs that are not what they seem: ports that are not listed, addresses of no Service.

use std::fmt::Write;
use std::net::SocketAddr;
use std::thread;

use anyhow::Result;
use shunt_testbed::{Host, Probe, Protocol};

use crate::world::{World, cluster_ip_service, manifest};

/// Of [`SERVICE_CIDRS`], without a Service.
const UNUSED: [&str; 2] = ["10.96.7.7:80", "[fd00:96::77]:80"];
/// Of [`FURTHER_CIDRS`], without a Service.
const FURTHER: [&str; 2] = ["10.100.0.7:80", "[fd00:96::4:7]:80"];
/// Sent to the node all the same.
const OUTSIDE: [&str; 2] = ["10.101.0.7:80", "[fd00:96::5:7]:80"];
const WEB: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];

const SERVICE_CIDRS: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];
const FURTHER_CIDRS: [&str; 2] = ["10.100.0.0/24", "fd00:96::4:0/112"];

fn service_cidr(name: &str, cidrs: &[&str]) -> String {
    let mut text = format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
         metadata: {{name: {name}}}\nspec:\n  cidrs:\n"
    );
    for cidr in cidrs {
        let _ = writeln!(text, "  - {cidr:?}");
    }
    text
}

/// Asserts the same of packets from all senders to all of these, on all protocols, at once.
#[track_caller]
fn all(world: &World, to: &[&str], expectation: fn(Probe<'_>)) {
    let lab = &world.lab;
    let hosts: [&Host; 3] = [&lab.client, &lab.node, &lab.pod1];
    thread::scope(|scope| {
        for host in hosts {
            for protocol in Protocol::ALL {
                for to in to {
                    scope.spawn(move || expectation(lab.from(host).probe(protocol, to)));
                }
            }
        }
    });
}

fn dropped(probe: Probe<'_>) {
    probe.times(2).dropped();
}

fn eventually_dropped(probe: Probe<'_>) {
    probe.eventually().times(2).dropped();
}

#[test]
fn a_port_that_is_not_listed_is_refused() -> Result<()> {
    let world = World::with_web()?;
    world.manifests.write("cidr.yaml", service_cidr("kubernetes", &SERVICE_CIDRS))?;
    let _agent = world.start()?;
    for host in [&world.lab.client, &world.lab.node, &world.lab.pod1] {
        for protocol in Protocol::ALL {
            for to in ["10.96.0.10:81", "[fd00:96::10]:81", "10.96.0.10:30080"] {
                world.lab.from(host).probe(protocol, to).refused();
            }
        }
    }
    Ok(())
}

/// A port counts with its protocol.
#[test]
fn a_port_that_is_listed_on_another_protocol_is_refused() -> Result<()> {
    let world = World::new()?;
    let listed = [(Protocol::Tcp, 20_u8), (Protocol::Udp, 21), (Protocol::Sctp, 22)];
    for (protocol, number) in listed {
        let name = format!("only-{number}");
        let service = shunt_testbed::Service::new(&name)
            .cluster_ips(&[&format!("10.96.0.{number}"), &format!("fd00:96::{number}")])
            .port(&protocol.to_string().to_lowercase(), protocol, 80);
        let content = manifest(&service, &name, &[&world.lab.pod1]);
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    let _agent = world.start()?;
    for (listed, number) in listed {
        for to in [format!("10.96.0.{number}:80"), format!("[fd00:96::{number}]:80")] {
            for protocol in Protocol::ALL {
                for host in [&world.lab.client, &world.lab.node, &world.lab.pod2] {
                    let probe = world.lab.from(host).probe(protocol, &to);
                    match protocol == listed {
                        true => drop(probe.reaches(&["pod-1"])),
                        false => probe.refused(),
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn an_address_of_a_service_cidr_that_no_service_uses_is_dropped() -> Result<()> {
    let world = World::with_web()?;
    let cidrs = [&SERVICE_CIDRS[..], &FURTHER_CIDRS].concat();
    world.manifests.write("cidr.yaml", service_cidr("kubernetes", &cidrs))?;
    let _agent = world.start()?;
    all(&world, &[&UNUSED[..], &FURTHER].concat(), dropped);
    all(&world, &OUTSIDE, |probe| probe.unhandled());
    world.assert_web_works();
    Ok(())
}

#[test]
fn service_cidrs_come_and_go_while_the_agent_runs() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    all(&world, &[&UNUSED[..], &FURTHER].concat(), |probe| probe.unhandled());

    world.manifests.write("cidr.yaml", service_cidr("kubernetes", &SERVICE_CIDRS))?;
    all(&world, &UNUSED, eventually_dropped);
    all(&world, &FURTHER, |probe| probe.unhandled());

    // One that is inside of the first and one beside it.
    let inside = ["10.96.7.0/24", "fd00:96::70/124"];
    world.manifests.write("inside.yaml", service_cidr("inside", &inside))?;
    world.manifests.write("further.yaml", service_cidr("further", &FURTHER_CIDRS))?;
    all(&world, &FURTHER, eventually_dropped);
    all(&world, &UNUSED, dropped);
    all(&world, &OUTSIDE, |probe| probe.unhandled());

    world.manifests.remove("further.yaml")?;
    all(&world, &FURTHER, |probe| probe.eventually().unhandled());
    all(&world, &UNUSED, dropped);

    // The one inside still covers the addresses.
    world.manifests.remove("cidr.yaml")?;
    for to in ["10.96.200.1:80", "[fd00:96::200]:80"] {
        world.lab.from(&world.lab.client).tcp(to).eventually().unhandled();
    }
    all(&world, &UNUSED, dropped);

    world.manifests.remove("inside.yaml")?;
    all(&world, &UNUSED, |probe| probe.eventually().unhandled());
    world.assert_web_works();
    Ok(())
}

#[test]
fn an_address_is_dropped_from_the_moment_its_service_is_gone() -> Result<()> {
    let world = World::with_web()?;
    world.manifests.write("cidr.yaml", service_cidr("kubernetes", &SERVICE_CIDRS))?;
    let _agent = world.start()?;
    world.assert_web_works();
    world.manifests.remove("web.yaml")?;
    all(&world, &WEB, eventually_dropped);

    // Another Service with the same addresses, on another port.
    let heir = shunt_testbed::Service::new("heir").cluster_ips(&["10.96.0.10", "fd00:96::10"]);
    let heir = crate::world::on_all_protocols(heir, 90, None);
    world.manifests.write("heir.yaml", manifest(&heir, "heir", &[&world.lab.pod2]))?;
    all(&world, &WEB, |probe| probe.eventually().refused());
    for to in WEB {
        let mut to: SocketAddr = to.parse()?;
        to.set_port(90);
        world.lab.from(&world.lab.client).tcp(to).reaches(&["pod-2"]);
    }

    // And none of its ports has endpoints.
    world
        .manifests
        .write("heir.yaml", cluster_ip_service("heir", &["10.96.0.10", "fd00:96::10"]))?;
    all(&world, &WEB, |probe| probe.eventually().refused());
    Ok(())
}

/// A Service that names its ClusterIP as an external address wants it treated as one.
#[test]
fn a_cluster_ip_that_is_an_external_address_too_is_external() -> Result<()> {
    let world = World::new()?;
    let both = ["10.96.0.30", "fd00:96::30"];
    let plain = shunt_testbed::Service::new("plain").cluster_ips(&both).external_ips(&both);
    let plain = crate::world::on_all_protocols(plain, 80, None);
    let local = ["10.96.0.31", "fd00:96::31"];
    let restricted = shunt_testbed::Service::new("restricted")
        .cluster_ips(&local)
        .load_balancer(&local)
        .external_ips(&local)
        .spec("externalTrafficPolicy: Local")
        .spec("loadBalancerSourceRanges: ['10.244.0.0/16', 'fd00:244::/48']");
    let restricted = crate::world::on_all_protocols(restricted, 80, None);
    let pods = [&world.lab.pod1, &world.lab.pod3];
    world.manifests.write("plain.yaml", manifest(&plain, "plain", &pods))?;
    world.manifests.write("restricted.yaml", manifest(&restricted, "restricted", &pods))?;
    let _agent = world.start()?;
    let lab = &world.lab;
    for protocol in Protocol::ALL {
        for ip in ["10.96.0.30:80", "[fd00:96::30]:80"] {
            let pod = lab.from(&lab.pod2).probe(protocol, ip);
            pod.reaches(&["pod-1", "pod-3"]).source_masqueraded();
        }
        for ip in ["10.96.0.31:80", "[fd00:96::31]:80"] {
            lab.from(&lab.client).probe(protocol, ip).times(2).dropped();
            let pod = lab.from(&lab.pod2).probe(protocol, ip);
            pod.reaches(&["pod-1", "pod-3"]).source_preserved();
        }
    }
    Ok(())
}
