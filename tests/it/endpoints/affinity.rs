//! `sessionAffinity: ClientIP`: time-outs, and a map that is full. The rest is in scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nfnetlink::nft::{Batch, ElementData, Elements, Error, Kernel as _, Socket, TableFamily};
use nix::errno::Errno;
use shunt_testbed::{Host, Outcome, Protocol, Service, probe};

use crate::table::{Case, Family, Table, addresses};
use crate::world::{CLUSTER_CIDR, World, slices, web};

/// Enough that with two or more endpoints it is no chance if all have the same one, or if all find
/// back to theirs: 2⁻²⁹.
const CLIENTS: u8 = 30;
const PATIENCE: Duration = Duration::from_secs(5);

fn sticky(seconds: u32) -> Service {
    web()
        .spec("sessionAffinity: ClientIP")
        .spec(&format!("sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}"))
}

/// A world whose client has many addresses; web is sticky, with all pods as endpoints.
struct Sticky {
    world: World,
    client: Host,
}

impl Sticky {
    fn new(seconds: u32) -> Result<Self> {
        let world = World::new()?;
        let mut client = world.lab.client.clone();
        let mut commands = String::new();
        for number in 1..CLIENTS {
            let v4 = [192, 0, 2, 100 + number].into();
            let v6 = format!("2001:db8:2::1:{number:x}").parse()?;
            commands += &format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n");
            client.ipv4.push(v4);
            client.ipv6.push(v6);
        }
        client.ip(&commands)?;
        world.manifests.write("web.yaml", sticky(seconds))?;
        let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
        world.manifests.write("slices.yaml", slices("web", &pods))?;
        Ok(Self { world, client })
    }

    fn sources(&self, case: Case) -> Vec<IpAddr> {
        addresses(&self.client, case.family)
    }

    /// Which server each of the client's addresses reaches, through each frontend.
    fn sessions(&self, cases: &[Case]) -> Result<Sessions> {
        self.client.run(|| {
            let mut sessions = Sessions::new();
            for &case in cases {
                for source in self.sources(case) {
                    sessions.insert((case, source), server(case, source)?);
                }
            }
            Ok(sessions)
        })
    }

    /// Elements of the maps in which the kernel remembers clients.
    fn remembered(&self) -> Result<usize> {
        let mut count = 0;
        for family in [Family::V4, Family::V6] {
            let node = &self.world.lab.node;
            let text = node.output("nft", &["list", "map", family.table(), "shunt", "affinity"])?;
            count += text.matches(" expires ").count();
        }
        Ok(count)
    }
}

/// Asks from this address, in the namespace of the calling thread.
fn server(case: Case, source: IpAddr) -> Result<String> {
    match probe(case.protocol, Some(source), case.address(), PATIENCE)? {
        Outcome::Reached { server, .. } => Ok(server),
        other => bail!("{case} from {source}: {other}"),
    }
}

/// The server of each client, by how it asks and its address.
type Sessions = BTreeMap<(Case, IpAddr), String>;

#[test]
fn a_session_ends_with_its_time_out() -> Result<()> {
    let sticky = Sticky::new(1)?;
    let _agent = sticky.world.start()?;
    let cases = Table::ALL.cases();
    let before = sticky.sessions(&cases)?;
    let start = Instant::now();
    while sticky.remembered()? > 0 {
        ensure!(start.elapsed() < Duration::from_secs(20), "clients are not forgotten");
        thread::sleep(Duration::from_millis(50));
    }
    let after = sticky.sessions(&cases)?;
    for case in cases {
        let moved = after.iter().any(|(key, now)| key.0 == case && before[key] != *now);
        assert!(moved, "{case}: all clients found back to the same endpoints");
    }
    Ok(())
}

/// With a time-out of two seconds, a client that connects more often keeps its endpoint. On a
/// machine that sleeps for as long between two connections the client begins anew.
#[test]
fn a_connection_refreshes_its_session() -> Result<()> {
    const SECONDS: u32 = 2;
    const TIME_OUT: Duration = Duration::from_secs(SECONDS as u64);
    struct Run {
        server: String,
        began: Instant,
        last: Instant,
    }

    let sticky = Sticky::new(SECONDS)?;
    let _agent = sticky.world.start()?;
    let cases = Table::ALL.cases();
    let start = Instant::now();
    sticky.client.run(|| {
        let mut runs: BTreeMap<Case, Run> = BTreeMap::new();
        let mut kept: BTreeSet<Case> = BTreeSet::new();
        while kept.len() < cases.len() {
            ensure!(start.elapsed() < Duration::from_secs(60), "only {kept:?} kept theirs");
            for &case in &cases {
                let source = *sticky.sources(case).first().context("a client without address")?;
                let asked = Instant::now();
                let server = server(case, source)?;
                match runs.get_mut(&case).filter(|run| run.last.elapsed() < TIME_OUT) {
                    Some(run) => {
                        ensure!(run.server == server, "{case}: {}, then {server}", run.server);
                        run.last = asked;
                        if run.began.elapsed() > 2 * TIME_OUT + TIME_OUT / 2 {
                            kept.insert(case);
                        }
                    }
                    None => drop(runs.insert(case, Run { server, began: asked, last: asked })),
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })
}

/// The map has room for so many and no more. Once it is full, new clients are served without a
/// session, and whoever has one keeps it; and endpoints can still go.
#[test]
fn full_affinity_map_keeps_existing_sessions() -> Result<()> {
    let sticky = Sticky::new(10_800)?;
    let Sticky { world, client } = &sticky;
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
    let (first, other) = (client.ipv4[0].into(), client.ipv4[1].into());
    let had = ask(first)?;

    let mut socket = world.lab.node.run(|| Ok(Socket::open()?))?;
    fill(&mut socket)?;
    for _ in 0..10 {
        assert_eq!(ask(first)?, had, "who has a session keeps it");
    }
    let servers: BTreeSet<String> = (0..50).map(|_| ask(other)).collect::<Result<_>>()?;
    assert!(servers.len() > 1, "the map is full, and {other} has a session: {servers:?}");

    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3];
    let left: Vec<_> = pods.into_iter().filter(|pod| pod.to_string() != had).collect();
    world.manifests.write("slices.yaml", slices("web", &left))?;
    let start = Instant::now();
    while ask(first)? == had {
        ensure!(start.elapsed() < Duration::from_secs(60), "{first} stays with {had}");
    }
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
