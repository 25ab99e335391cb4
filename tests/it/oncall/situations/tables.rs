//! Tables that another process owns, and frontends that the kernel refuses.

use std::env;

use anyhow::{Result, ensure};
use shunt_testbed::Occupier;

use super::{Packet, ROW, Row, Says, TCP, To, V4, V6, check, wait_for};
use crate::table::service_of;
use crate::world::{CLUSTER_CIDR, World, slices};

const WEB: u8 = 60;
const SINGLE: u8 = 61;

/// IPv4, over TCP.
const TCP4: Row = Row { families: V4, over: TCP, ..ROW };
/// IPv6 is as before, with all endpoints.
const UNHARMED: Row = Row {
    situation: "the other family",
    to: To::cluster_ip(WEB),
    families: V6,
    over: TCP,
    masquerade: "not-local",
    packet: Packet::Answered(&["pod-1", "pod-2", "pod-3"]),
    ..ROW
};

fn world() -> Result<World> {
    let world = World::new()?;
    let [pod1, pod2, pod3] = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    for (number, pods) in [(WEB, &[pod1, pod2, pod3][..]), (SINGLE, &[pod1])] {
        let name = format!("service-{number}");
        let content = format!("{}{}", service_of(&name, number), slices(&name, pods));
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

/// A process that owns the table `ip shunt` keeps the agent from it.
#[test]
fn failing_sync_is_named() -> Result<()> {
    let world = world()?;
    let agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?;
    check(&world, &[UNHARMED])?;
    let _occupier = Occupier::enter(&world.lab.node)?;
    agent.wait_for_log(&["nothing was programmed"])?;
    let to = ["--to", "10.96.0.61:80", "--from", "192.0.2.100"];
    wait_for(&world, &to, |answer| answer.codes().contains("not-committed-yet"))?;
    check(
        &world,
        &[Row {
            situation: "the sync fails, because another process owns the table",
            to: To::cluster_ip(SINGLE),
            says: Says::Dropped,
            codes: &["not-committed-yet"],
            packet: Packet::Untouched,
            ..TCP4
        }],
    )
}

#[test]
fn frontend_that_the_kernel_refuses_is_named() -> Result<()> {
    let world = world()?;
    let library = env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(library.is_file(), "{} is missing", library.display());
    let preload = format!("LD_PRELOAD={}", library.display());
    let refuse = "SHUNT_REFUSE=10.96.0.60:80 [fd00:96::60]:80 198.51.100.61:80";
    let wrapper = ["env", &preload, refuse];
    let _agent = world.agent(CLUSTER_CIDR)?.wrapper(&wrapper).start()?;
    check(
        &world,
        &[
            Row {
                situation: "the kernel refuses the ClusterIP",
                to: To::cluster_ip(WEB),
                says: Says::Refused,
                codes: &["quarantined"],
                packet: Packet::Refused,
                ..ROW
            },
            Row {
                situation: "the kernel refuses the ExternalIP",
                to: To::external_ip(SINGLE),
                families: V4,
                says: Says::Unknown,
                codes: &["quarantined"],
                packet: Packet::Untouched,
                ..ROW
            },
            Row {
                situation: "the kernel does not refuse the VIP",
                to: To::vip(SINGLE),
                masquerade: "external-cluster-policy",
                packet: Packet::Answered(&["pod-1"]),
                ..ROW
            },
        ],
    )
}
