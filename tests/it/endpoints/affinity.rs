//! `sessionAffinity: ClientIP` with a map that is full. The rest is in scenarios.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nfnetlink::nft::{Batch, ElementData, Elements, Error, Kernel as _, Socket, TableFamily};
use nix::errno::Errno;
use shunt_testbed::{Outcome, Protocol, eventually, probe};

use crate::world::{CLUSTER_CIDR, World, slices, web};

const PATIENCE: Duration = Duration::from_secs(5);

/// The map has room for so many and no more. Once it is full, new clients are served without a
/// session, and whoever has one keeps it; and endpoints can still go.
#[test]
fn full_affinity_map_keeps_existing_sessions() -> Result<()> {
    let world = World::new()?;
    let client = &world.lab.client;
    client.ip("addr add 192.0.2.101/24 dev eth0")?;
    world.manifests.write("web.yaml", web().spec("sessionAffinity: ClientIP"))?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    world.manifests.write("slices.yaml", slices("web", &pods))?;
    // Owned, nobody but the agent could fill it.
    let _agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?;
    let to = "10.96.0.10:80";
    let ask = |source: IpAddr| {
        let outcome = client.run(|| probe(Protocol::Tcp, Some(source), to.parse()?, PATIENCE))?;
        match outcome {
            Outcome::Reached { server, .. } => Ok(server),
            other => bail!("{to} from {source}: {other}"),
        }
    };
    let (first, other) = (client.ipv4[0].into(), [192, 0, 2, 101].into());
    let had = ask(first)?;

    let mut socket = world.lab.node.run(|| Ok(Socket::open()?))?;
    fill(&mut socket)?;
    for _ in 0..10 {
        assert_eq!(ask(first)?, had, "who has a session keeps it");
    }
    let servers: BTreeSet<String> = (0..50).map(|_| ask(other)).collect::<Result<_>>()?;
    assert!(servers.len() > 1, "the map is full, and {other} has a session: {servers:?}");

    let left: Vec<_> = pods.into_iter().filter(|pod| pod.to_string() != had).collect();
    world.manifests.write("slices.yaml", slices("web", &left))?;
    eventually(format_args!("another server than {had}"), || {
        Ok((ask(first)? != had).then_some(()))
    })?;
    // All those had it, so there is room again.
    let servers: BTreeSet<String> = (0..30).map(|_| ask(other)).collect::<Result<_>>()?;
    assert_eq!(servers.len(), 1, "there is room, and {other} has no session: {servers:?}");
    Ok(())
}

/// Adds clients to the map until it is full, all with the endpoint of the one that is there.
fn fill(socket: &mut Socket) -> Result<()> {
    let (table, map) = ("shunt", "affinity");
    let mut there = None;
    socket.elements(TableFamily::Ip, table, map, &mut |element| {
        if let Some(ElementData::Value(value)) = element.data {
            there = Some((element.key.to_vec(), value.to_vec()));
        }
    })?;
    let (mut key, value) = there.context("nothing was learned")?;
    let (mut client, mut at_once) = (u32::from_be_bytes([11, 0, 0, 0]), 1 << 16);
    while at_once > 0 {
        let mut elements = Elements::new();
        for client in client..client + at_once {
            key[..4].copy_from_slice(&client.to_be_bytes());
            elements.push(&key, Some(ElementData::Value(&value)), None);
        }
        let mut batch = Batch::new(None);
        batch.add_elements(TableFamily::Ip, table, map, &elements);
        match socket.commit(&batch.finish()) {
            Ok(()) => client += at_once,
            Err(Error::Refused(refusals)) => {
                ensure!(refusals[0].errno == Errno::ENFILE, "{}", refusals[0]);
                at_once /= 2;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
