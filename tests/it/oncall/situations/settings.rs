//! Session affinity, and settings that decide about masquerading and local traffic.

use anyhow::{Context, Result, ensure};
use shunt_testbed::Host;

use super::{From, Packet, ROW, Row, TCP, To, check, explain, wait_for};
use crate::table::service_of;
use crate::world::{CLUSTER_CIDR, World, slices};

/// Endpoint pod-1.
const HERE: u8 = 81;
/// Endpoint pod-3, external policy Local.
const AWAY: u8 = 82;

fn world() -> Result<World> {
    let world = World::new()?;
    let away = service_of("service-82", AWAY).spec("externalTrafficPolicy: Local");
    let here = service_of("service-81", HERE);
    world
        .manifests
        .write("81.yaml", format!("{here}{}", slices("service-81", &[&world.lab.pod1])))?;
    world
        .manifests
        .write("82.yaml", format!("{away}{}", slices("service-82", &[&world.lab.pod3])))?;
    Ok(world)
}

#[test]
fn masquerade_all_is_named() -> Result<()> {
    let world = world()?;
    let config = format!("{CLUSTER_CIDR}nftables: {{masqueradeAll: true}}\n");
    let _agent = world.agent(&config)?.start()?;
    let pod = Row { from: From::Pod2, over: TCP, ..ROW };
    check(
        &world,
        &[
            Row {
                situation: "masqueradeAll",
                to: To::cluster_ip(HERE),
                masquerade: "masquerade-all",
                packet: Packet::Answered(&["pod-1"]),
                ..pod
            },
            Row {
                situation: "masqueradeAll does not concern external frontends",
                to: To::external_ip(AWAY),
                packet: Packet::Answered(&["pod-3"]),
                ..pod
            },
        ],
    )
}

/// Local traffic is what arrives on a bridge, which is not the veth of the pod.
#[test]
fn interfaces_decide_what_is_local() -> Result<()> {
    let world = world()?;
    world.lab.put_pods_on_bridge(true)?;
    for (bridge, masquerade) in [("cbr0", ""), ("cbr1", "not-local")] {
        let config = format!(
            "detectLocalMode: BridgeInterface\ndetectLocal: {{bridgeInterface: {bridge}}}\n"
        );
        let agent = world.agent(&config)?.start()?;
        let rows = [
            Row {
                situation: "pods are detected by their bridge",
                from: From::Pod2,
                to: To::cluster_ip(HERE),
                over: TCP,
                masquerade,
                packet: Packet::Answered(&["pod-1"]),
                ..ROW
            },
            Row {
                situation: "the client does not arrive on the bridge",
                to: To::cluster_ip(HERE),
                over: TCP,
                masquerade: "not-local",
                packet: Packet::Answered(&["pod-1"]),
                ..ROW
            },
        ];
        check(&world, &rows).context(bridge)?;
        agent.stop()?;
    }
    Ok(())
}

#[test]
fn session_affinity_to_a_removed_endpoint_ends() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let write = |pods: &[&Host]| {
        let service = service_of("web", HERE).spec("sessionAffinity: ClientIP");
        world.manifests.write("web.yaml", format!("{service}{}", slices("web", pods)))
    };
    write(&[&lab.pod1, &lab.pod2])?;
    let _agent = world.start()?;
    for (to, from) in [("10.96.0.81:80", "192.0.2.100"), ("[fd00:96::81]:80", "2001:db8:2::100")] {
        let question = ["--to", to, "--from", from];
        write(&[&lab.pod1, &lab.pod2])?;
        let used = |answer: &super::Answer| {
            let endpoints = answer.json["endpoints"].as_array().cloned().unwrap_or_default();
            endpoints.iter().filter(|endpoint| endpoint["used"] == true).count()
        };
        let answer = wait_for(&world, &question, |answer| used(answer) == 2)?;
        ensure!(answer.json["affinity"]["applies"] == true, "{:#}", answer.json);
        ensure!(answer.json["affinity"]["endpoint"].is_null(), "{:#}", answer.json);

        let first = lab.from(&lab.client).tcp(to).tally(1, super::PATIENCE)?;
        let first = *first.by_server().keys().next().context("no server")?;
        let [pod, other] = match first {
            "pod-1" => [&lab.pod1, &lab.pod2],
            _ => [&lab.pod2, &lab.pod1],
        };
        let answer = explain(&world, &question)?;
        let endpoint = answer.json["affinity"]["endpoint"].as_str().unwrap_or_default();
        let address: std::net::SocketAddr = endpoint.parse()?;
        ensure!(pod.ips().any(|ip| ip == address.ip()), "{first} answered: {:#}", answer.json);
        ensure!(used(&answer) == 1 && answer.codes().is_empty(), "{:#}", answer.json);
        lab.from(&lab.client).tcp(to).times(5).reaches(&[first]);

        write(&[other])?;
        let answer = wait_for(&world, &question, |answer| {
            answer.json["affinity"]["endpoint"].is_null() && used(answer) == 1
        })?;
        ensure!(answer.status == 0 && answer.codes().is_empty(), "{:#}", answer.json);
        lab.from(&lab.client).tcp(to).times(5).reaches(&[other.name.as_str()]);
    }
    Ok(())
}
