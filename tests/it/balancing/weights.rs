//! `shunt.dev/weight`: endpoints get connections in proportion, and none with the weight 0.

use anyhow::{Result, ensure};
use shunt_testbed::{Connection, EndpointSlice, Host};

use crate::endpoints::balance::check_shares;
use crate::endpoints::changes::Changes;
use crate::table::Table;
use crate::world::{World, target_ports, web};

/// Slices for both families, with one host and a weight each.
fn weighted(annotation: &str, hosts: &[(&Host, &str)]) -> String {
    let slice = |slice: EndpointSlice, suffix: &str, (host, weight): &(&Host, &str)| {
        let slice = target_ports(slice.name(&format!("web-{}-{suffix}", host.name))).hosts(&[host]);
        match *weight {
            "" => slice,
            weight => slice.metadata(&format!("annotations: {{{annotation}: {weight:?}}}")),
        }
    };
    let both = |host| {
        let (v4, v6) = (EndpointSlice::v4("web"), EndpointSlice::v6("web"));
        format!("{}{}", slice(v4, "v4", host), slice(v6, "v6", host))
    };
    hosts.iter().map(both).collect()
}

struct Weighted {
    world: World,
    changes: Changes,
}

impl Weighted {
    fn new(annotation: &str, weights: [&str; 3]) -> Result<Self> {
        let world = World::new()?;
        world.manifests.write("web.yaml", web())?;
        world.manifests.write("slices.yaml", Self::slices(&world, annotation, weights))?;
        let changes = Changes::start(&world)?;
        changes.settle(&world)?;
        Ok(Self { world, changes })
    }

    fn slices(world: &World, annotation: &str, [one, two, three]: [&str; 3]) -> String {
        let lab = &world.lab;
        weighted(annotation, &[(&lab.pod1, one), (&lab.pod2, two), (&lab.pod3, three)])
    }

    fn set(&self, weights: [&str; 3]) -> Result<()> {
        let slices = Self::slices(&self.world, "shunt.dev/weight", weights);
        self.changes.write(&self.world, "slices.yaml", slices)
    }
}

#[test]
fn endpoints_get_connections_in_proportion_to_their_weights() -> Result<()> {
    let weighted = Weighted::new("shunt.dev/weight", ["100", "200", "300"])?;
    let lab = &weighted.world.lab;
    let shares = [(&lab.pod1, 1.0), (&lab.pod2, 2.0), (&lab.pod3, 3.0)];
    // Of chi-square with two degrees of freedom.
    Table::CLUSTER_IPS
        .check("weights", |case| check_shares(&weighted.world, case, &shares, [13.82, 36.8]))
}

#[test]
fn the_annotation_of_cilium_counts() -> Result<()> {
    let weighted = Weighted::new("service.cilium.io/weight", ["0", "7", "0"])?;
    Table::ALL.check("weights", |case| {
        let client = weighted.world.lab.from(&weighted.world.lab.client);
        client.probe(case.protocol, case.address()).times(12).reaches(&["pod-2"]);
        Ok(())
    })
}

#[test]
fn a_drained_endpoint_keeps_its_connections_and_gets_no_new_one() -> Result<()> {
    let weighted = Weighted::new("shunt.dev/weight", ["0", "", "0"])?;
    let vip = "10.96.0.10:80";
    let client = || weighted.world.lab.from(&weighted.world.lab.client).tcp(vip).times(60);
    let mut open = weighted.world.lab.client.run(|| Connection::open(vip.parse()?))?;
    ensure!(open.server == "pod-2", "{}", open.server);
    weighted.set(["", "0", ""])?;
    client().reaches(&["pod-1", "pod-3"]);
    open.echo("still here")?;
    // Without any other endpoint, connections are refused.
    weighted.set(["0", "0", "0"])?;
    client().refused();
    open.echo("still here")?;
    weighted.set(["", "", ""])?;
    client().reaches(&["pod-1", "pod-2", "pod-3"]);
    open.echo("still here")?;
    Ok(())
}

/// A new verdict would make the kernel check all chains, and end a counter.
#[test]
fn weights_change_data_of_elements_only() -> Result<()> {
    let weighted = Weighted::new("shunt.dev/weight", ["1", "1", "1"])?;
    let node = &weighted.world.lab.node;
    let verdicts = || node.output("nft", &["list", "map", "ip", "shunt", "service-nodeports"]);
    let chains = || node.output("nft", &["list", "chains", "ip"]);
    let before = (verdicts()?, chains()?);
    for weights in [["5", "1", "1"], ["65535", "1", "0"], ["0", "0", "9"], ["2", "2", "2"]] {
        weighted.set(weights)?;
        ensure!((verdicts()?, chains()?) == before, "{weights:?}");
    }
    Ok(())
}

#[test]
fn a_weight_that_is_no_number_is_named_and_counts_as_one() -> Result<()> {
    let weighted = Weighted::new("shunt.dev/weight", ["many", "0", "-1"])?;
    let agent = weighted.changes.agent()?;
    agent.wait_for_log(&["shunt.dev/weight", "many", "write a number from 0 to 65535"])?;
    let client = weighted.world.lab.from(&weighted.world.lab.client);
    client.tcp("10.96.0.10:80").reaches(&["pod-1", "pod-3"]);
    Ok(())
}
