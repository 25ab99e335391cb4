//! An established connection belongs to its two ends: nothing that the agent does touches it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use shunt_testbed::{Connection, Protocol};

use super::changes::{Changes, READY, SERVING, slices_of};
use crate::table::{Case, Table};
use crate::world::{World, cluster_ip_service, manifest, web};

const TCP: Table = Table::ALL.on(&[Protocol::Tcp]);

struct Connections(BTreeMap<Case, Connection>);

impl Connections {
    fn echo(&mut self, step: &str) -> Result<()> {
        for (case, connection) in &mut self.0 {
            for _ in 0..3 {
                let answer = connection.echo(step).with_context(|| format!("{case}: {step}"))?;
                assert_eq!(answer, step, "{case}");
            }
        }
        Ok(())
    }
}

#[test]
fn a_connection_flows_through_everything() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let write =
        |endpoints: &[_]| world.manifests.write("slices.yaml", slices_of("web", "all", endpoints));
    world.manifests.write("web.yaml", web())?;
    write(&[(&lab.pod1, READY)])?;
    let mut changes = Changes::start(&world)?;
    let mut connections = Connections(BTreeMap::new());
    for case in TCP.cases() {
        connections.0.insert(case, lab.from(&lab.client).connect(case.address())?);
    }
    connections.echo("opened")?;

    write(&[(&lab.pod1, READY), (&lab.pod2, READY)])?;
    changes.settle(&world)?;
    connections.echo("one endpoint more")?;
    write(&[(&lab.pod1, READY), (&lab.pod2, READY), (&lab.pod3, READY)])?;
    changes.settle(&world)?;
    connections.echo("another one")?;

    write(&[(&lab.pod1, SERVING), (&lab.pod2, READY), (&lab.pod3, READY)])?;
    changes.settle(&world)?;
    for case in TCP.cases() {
        lab.from(&lab.client).tcp(case.address()).reaches(&["pod-2", "pod-3"]);
    }
    connections.echo("its endpoint is terminating")?;

    let pods = [&lab.pod1, &lab.pod2, &lab.pod3];
    for change in 0..500 {
        let name = format!("other-{}", change % 40);
        let file = format!("{name}.yaml");
        let other = cluster_ip_service(&name, &[&format!("10.96.1.{}", change % 250)]);
        world.manifests.write(&file, manifest(&other, &name, &pods[..change % 4]))?;
        if change % 50 == 0 {
            connections.echo("others change")?;
        }
    }
    changes.settle(&world)?;
    connections.echo("others have changed")?;

    changes.kill()?;
    connections.echo("the agent is dead")?;
    changes.restart(&world)?;
    changes.settle(&world)?;
    connections.echo("the agent is back")?;

    write(&[(&lab.pod2, READY), (&lab.pod3, READY)])?;
    changes.settle(&world)?;
    connections.echo("its endpoint is gone from the slices")?;

    changes.kill()?;
    world.manifests.remove("web.yaml")?;
    changes.restart(&world)?;
    for case in TCP.cases() {
        // The node itself refuses what no node port takes.
        let client = lab.from(&lab.client).tcp(case.address());
        match case.frontend {
            crate::table::Frontend::NodePort => client.refused(),
            _ => client.unhandled(),
        }
    }
    connections.echo("its Service is gone")
}
