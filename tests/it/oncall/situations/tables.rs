//! Tables that another process has changed, and frontends that the kernel refuses. The agent does
//! not own its tables here, and does not check for drift.

use std::env;

use anyhow::{Result, ensure};
use shunt_testbed::{Agent, Occupier};

use super::{From, Packet, ROW, Row, Says, TCP, To, V4, V6, check, wait_for};
use crate::table::service_of;
use crate::world::{CLUSTER_CIDR, World, slices};

const WEB: u8 = 60;
const SINGLE: u8 = 61;

/// A change of another process, and what is right then.
struct Damage {
    commands: &'static str,
    rows: &'static [Row],
}

/// IPv4, over TCP: the damage concerns all protocols or TCP only.
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

const DAMAGES: &[Damage] = &[
    Damage {
        commands: "flush chain ip shunt services",
        rows: &[
            Row {
                situation: "the rules of chain services are gone",
                to: To::cluster_ip(WEB),
                says: Says::Refused,
                codes: &["kernel-differs"],
                packet: Packet::Refused,
                ..TCP4
            },
            Row {
                situation: "the rules of chain services are gone, at the ExternalIP",
                to: To::external_ip(WEB),
                says: Says::Unknown,
                codes: &["kernel-differs"],
                packet: Packet::Untouched,
                ..TCP4
            },
            UNHARMED,
        ],
    },
    Damage {
        commands: "flush chain ip shunt nat-prerouting",
        rows: &[
            Row {
                situation: "the jump of the base chain is gone",
                to: To::cluster_ip(WEB),
                says: Says::Dropped,
                codes: &["kernel-differs"],
                packet: Packet::Untouched,
                ..TCP4
            },
            Row {
                situation: "the jump of the base chain is gone, from the node",
                from: From::Node,
                to: To::cluster_ip(SINGLE),
                masquerade: "not-local",
                packet: Packet::Answered(&["pod-1"]),
                ..TCP4
            },
            UNHARMED,
        ],
    },
    Damage {
        commands: "insert rule ip shunt services drop",
        rows: &[
            Row {
                situation: "a foreign rule that drops in chain services",
                to: To::cluster_ip(WEB),
                says: Says::Unknown,
                codes: &["kernel-differs"],
                packet: Packet::Silent,
                ..TCP4
            },
            UNHARMED,
        ],
    },
    Damage {
        commands: "insert rule ip shunt services ip saddr 203.0.113.3 drop",
        rows: &[Row {
            situation: "a foreign rule in chain services that does not concern the packet",
            to: To::cluster_ip(SINGLE),
            says: Says::Unknown,
            codes: &["kernel-differs"],
            packet: Packet::Answered(&["pod-1"]),
            ..TCP4
        }],
    },
    Damage {
        commands: "delete table ip shunt",
        rows: &[
            Row {
                situation: "the table is gone",
                to: To::cluster_ip(WEB),
                says: Says::Dropped,
                codes: &["kernel-differs"],
                packet: Packet::Untouched,
                ..TCP4
            },
            UNHARMED,
        ],
    },
    Damage {
        commands: "delete element ip shunt service-ips { 10.96.0.60 . tcp . 80 }\n\
                   delete element ip shunt service-ips { 198.51.100.60 . tcp . 80 }",
        rows: &[
            Row {
                situation: "the element of the ClusterIP is gone",
                to: To::cluster_ip(WEB),
                says: Says::Refused,
                codes: &["kernel-differs"],
                packet: Packet::Refused,
                ..TCP4
            },
            Row {
                situation: "the element of the ExternalIP is gone",
                from: From::Pod2,
                to: To::external_ip(WEB),
                says: Says::Unknown,
                codes: &["kernel-differs"],
                packet: Packet::Untouched,
                ..TCP4
            },
            Row {
                situation: "the element of the VIP is not",
                to: To::vip(WEB),
                masquerade: "external-cluster-policy",
                packet: Packet::Answered(&["pod-1", "pod-2", "pod-3"]),
                ..TCP4
            },
        ],
    },
    Damage {
        commands: "delete element ip shunt endpoints { 10.96.0.60 . tcp . 80 . 1 }",
        rows: &[Row {
            situation: "one of three slots is gone",
            to: To::cluster_ip(WEB),
            codes: &["kernel-differs"],
            masquerade: "not-local",
            packet: Packet::Answered(&["pod-1", "pod-3"]),
            ..TCP4
        }],
    },
    Damage {
        commands: "flush map ip shunt endpoints",
        rows: &[
            Row {
                situation: "the whole pool is gone",
                to: To::cluster_ip(WEB),
                says: Says::Refused,
                codes: &["kernel-differs"],
                packet: Packet::Refused,
                ..TCP4
            },
            Row {
                situation: "the whole pool is gone, at the VIP",
                to: To::vip(WEB),
                says: Says::Unknown,
                codes: &["kernel-differs"],
                packet: Packet::Untouched,
                ..TCP4
            },
        ],
    },
    Damage {
        commands: "flush chain ip shunt nat-postrouting",
        rows: &[Row {
            situation: "the masquerading is gone, and the endpoint answers the client directly",
            from: From::Client,
            to: To::cluster_ip(SINGLE),
            codes: &["kernel-differs"],
            packet: Packet::Answered(&["pod-1"]),
            ..TCP4
        }],
    },
];

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

fn start(world: &World) -> Result<Agent> {
    let agent = world.agent(CLUSTER_CIDR)?;
    agent.arg("--own-tables=false").arg("--drift-check-period=0").start()
}

#[test]
fn damage_of_the_tables_is_seen() -> Result<()> {
    let world = world()?;
    for Damage { commands, rows } in DAMAGES {
        let agent = start(&world)?;
        check(&world, &[UNHARMED])?;
        world.lab.node.nft(commands)?;
        check(&world, rows)?;
        // The next one repairs the tables.
        agent.stop()?;
    }
    Ok(())
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
