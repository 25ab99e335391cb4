//! `sessionAffinity: ClientIP`: a client stays with its endpoint, and never with a dead one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nfnetlink::nft::{Batch, ElementData, Elements, Error, Kernel as _, Socket, TableFamily};
use nix::errno::Errno;
use shunt_testbed::{Host, Outcome, Protocol, Service, probe};

use super::changes::{Changes, DYING, READY, SERVING, UNREADY, slices_of};
use crate::table::{Case, Family, Table, addresses};
use crate::world::{CLUSTER_CIDR, World, cluster_ip_service, manifest, slices, web};

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

    /// Writes the endpoints of web.
    fn endpoints(&self, changes: &Changes, endpoints: &[(&Host, &str)]) -> Result<()> {
        changes.write(&self.world, "slices.yaml", slices_of("web", "all", endpoints))
    }

    /// Which server each of the client's addresses reaches, through each frontend.
    fn sessions(&self, cases: &[Case]) -> Result<Sessions> {
        self.client.run(|| {
            let mut sessions = Sessions::default();
            for &case in cases {
                for source in self.sources(case) {
                    sessions.0.insert((case, source), server(case, source)?);
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sessions(BTreeMap<(Case, IpAddr), String>);

impl Sessions {
    /// The servers of all that use this frontend.
    fn servers(&self, case: Case) -> BTreeSet<&str> {
        let own = self.0.iter().filter(|((other, _), _)| *other == case);
        own.map(|(_, server)| server.as_str()).collect()
    }

    /// Who asks how has another server than before.
    fn moved(&self, before: &Self) -> Vec<String> {
        let now = self.0.iter().filter(|(key, server)| before.0.get(key) != Some(server));
        now.map(|((case, source), server)| {
            let before = before.0.get(&(*case, *source));
            format!("{case} from {source}: {before:?} before, {server} now")
        })
        .collect()
    }

    #[track_caller]
    fn assert_kept(&self, before: &Self, through: &str) {
        let moved = self.moved(before);
        assert!(moved.is_empty(), "moved through {through}:\n{}", moved.join("\n"));
    }
}

#[test]
fn a_session_outlives_changes() -> Result<()> {
    let sticky_world = Sticky::new(10_800)?;
    let Sticky { world, .. } = &sticky_world;
    let cases = Table::ALL.cases();
    let mut changes = Changes::start(world)?;
    let sessions = sticky_world.sessions(&cases)?;
    for case in &cases {
        assert!(sessions.servers(*case).len() > 1, "{case}: all clients have one endpoint");
    }
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "nothing");

    let node = &world.lab.node;
    node.output("nft", &["list", "ruleset"])?;
    node.output("nft", &["-j", "list", "ruleset"])?;
    assert_eq!(sticky_world.remembered()?, sessions.0.len());

    let pod4 = world.lab.add_pod(node, "pod-4", [10, 244, 0, 14], "fd00:244::14")?;
    let _server = shunt_testbed::Echo::on(&pod4, crate::world::TARGET)?;
    let pods = [&world.lab.pod1, &world.lab.pod2, &world.lab.pod3, &pod4];
    changes.write(world, "slices.yaml", slices("web", &pods))?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "a new endpoint");

    for number in 0..50 {
        let name = format!("other-{number}");
        let other = cluster_ip_service(&name, &[&format!("10.96.1.{number}")]);
        world.manifests.write(&format!("{name}.yaml"), manifest(&other, &name, &pods))?;
    }
    changes.settle(world)?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "changes of others");

    let relabelled = sticky(10_800).label("tier", "front");
    changes.write(world, "web.yaml", &relabelled)?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "a new label");

    let grown = relabelled.node_port("more", Protocol::Tcp, 81, 30081);
    changes.write(world, "web.yaml", &grown)?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "a new port");

    changes.kill()?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "the agent's death");
    changes.restart(world)?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "the agent's restart");

    changes.kill()?;
    world.manifests.write("slices.yaml", slices("web", &pods[..3]))?;
    changes.restart(world)?;
    sticky_world.sessions(&cases)?.assert_kept(&sessions, "a change while the agent was down");

    // The new one is in use all the same, by those who come first.
    changes.write(world, "slices.yaml", slices("web", &[&pod4]))?;
    for case in cases {
        assert_eq!(sticky_world.sessions(&[case])?.servers(case), BTreeSet::from(["pod-4"]));
    }
    Ok(())
}

#[test]
fn a_session_ends_with_its_time_out() -> Result<()> {
    let sticky = Sticky::new(1)?;
    let _changes = Changes::start(&sticky.world)?;
    let cases = Table::ALL.cases();
    let before = sticky.sessions(&cases)?;
    let start = Instant::now();
    while sticky.remembered()? > 0 {
        ensure!(start.elapsed() < Duration::from_secs(20), "clients are not forgotten");
        thread::sleep(Duration::from_millis(50));
    }
    let after = sticky.sessions(&cases)?;
    for case in cases {
        let moved = after.0.iter().any(|(key, now)| key.0 == case && before.0[key] != *now);
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
    let _changes = Changes::start(&sticky.world)?;
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

#[test]
fn a_client_leaves_a_dead_endpoint_at_once() -> Result<()> {
    let sticky = Sticky::new(10_800)?;
    let Sticky { world, .. } = &sticky;
    let cases = Table::ALL.cases();
    let mut changes = Changes::start(world)?;
    let (pod1, pod2, pod3) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);

    let mut before = sticky.sessions(&cases)?;
    let leave = |before: &mut Sessions, dead: &str, how: &str| -> Result<()> {
        let after = sticky.sessions(&cases)?;
        for ((case, source), server) in &after.0 {
            let old = &before.0[&(*case, *source)];
            assert_ne!(server, dead, "{case} from {source} stays when its endpoint is {how}");
            assert!(old == server || old == dead, "{case} from {source} moves when {how}");
        }
        sticky.sessions(&cases)?.assert_kept(&after, how);
        *before = after;
        Ok(())
    };

    sticky.endpoints(&changes, &[(pod2, READY), (pod3, READY)])?;
    leave(&mut before, "pod-1", "gone")?;
    sticky.endpoints(&changes, &[(pod1, READY), (pod2, READY), (pod3, READY)])?;
    sticky.sessions(&cases)?.assert_kept(&before, "the return of an endpoint");
    sticky.endpoints(&changes, &[(pod1, READY), (pod2, UNREADY), (pod3, READY)])?;
    leave(&mut before, "pod-2", "not ready")?;
    sticky.endpoints(&changes, &[(pod1, READY), (pod2, READY), (pod3, SERVING)])?;
    leave(&mut before, "pod-3", "terminating")?;

    // While the agent is down nothing changes; its start makes up for it.
    changes.kill()?;
    let remaining = [(pod1, DYING), (pod2, READY), (pod3, SERVING)];
    world.manifests.write("slices.yaml", slices_of("web", "all", &remaining))?;
    sticky.sessions(&cases)?.assert_kept(&before, "the agent's death");
    changes.restart(world)?;
    leave(&mut before, "pod-1", "dead since the agent was down")?;

    // And with the last one they are refused, not sent to a dead one.
    sticky.endpoints(&changes, &[(pod2, UNREADY)])?;
    Table::ALL.check("no endpoint is left", |case| {
        world.lab.from(&sticky.client).probe(case.protocol, case.address()).refused();
        Ok(())
    })?;
    sticky.endpoints(&changes, &[(pod3, READY)])?;
    for case in cases {
        assert_eq!(sticky.sessions(&[case])?.servers(case), BTreeSet::from(["pod-3"]));
    }
    Ok(())
}

/// The node's packets pass the output hook, and both take the short circuit of external frontends.
#[test]
fn the_node_and_a_pod_stay_with_their_endpoint_until_it_goes() -> Result<()> {
    // Without affinity, so many requests reach the same endpoint once in 2¹⁹.
    const REQUESTS: usize = 20;
    for policy in ["Cluster", "Local"] {
        let world = World::new()?;
        let (pod1, pod2, pod3) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);
        let service = sticky(10_800).spec(&format!("externalTrafficPolicy: {policy}"));
        world.manifests.write("web.yaml", service)?;
        world.manifests.write("slices.yaml", slices("web", &[pod1, pod3]))?;
        let changes = Changes::start(&world)?;
        let servers = |client: &Host, case: Case| {
            client.run(|| {
                let source = addresses(client, case.family)[0];
                let asked = (0..REQUESTS).map(|_| server(case, source));
                asked.collect::<Result<BTreeSet<String>>>()
            })
        };
        let cases = Table::ALL.cases();
        let mut before = BTreeMap::new();
        for client in [&world.lab.node, pod2] {
            for &case in &cases {
                let servers = servers(client, case)?;
                ensure!(servers.len() == 1, "{client}, {policy}, {case}: {servers:?}");
                before.insert((&client.name, case), servers);
            }
        }
        let servers_of_all: BTreeSet<&String> = before.values().flatten().collect();
        ensure!(servers_of_all.len() == 2, "{policy}: all have {servers_of_all:?}");
        changes.write(&world, "slices.yaml", slices("web", &[pod1]))?;
        for client in [&world.lab.node, pod2] {
            for &case in &cases {
                let servers = servers(client, case)?;
                let remaining = BTreeSet::from(["pod-1".to_owned()]);
                ensure!(servers == remaining, "{client}, {policy}, {case}: {servers:?}");
            }
        }
    }
    Ok(())
}

/// Clients from outside may not stay on an endpoint of another node, although local pods may.
#[test]
fn a_session_ends_when_the_policy_excludes_its_endpoint() -> Result<()> {
    let world = Sticky::new(10_800)?;
    let cases = Table::EXTERNAL.cases();
    let (pod1, pod2, pod3) = (&world.world.lab.pod1, &world.world.lab.pod2, &world.world.lab.pod3);
    let changes = Changes::start(&world.world)?;
    world.endpoints(&changes, &[(pod3, READY)])?;
    let before = world.sessions(&cases)?;
    world.endpoints(&changes, &[(pod1, READY), (pod2, READY), (pod3, READY)])?;
    world.sessions(&cases)?.assert_kept(&before, "new endpoints");
    let local = sticky(10_800).spec("externalTrafficPolicy: Local");
    changes.write(&world.world, "web.yaml", local)?;
    for case in cases {
        let sessions = world.sessions(&[case])?;
        assert!(!sessions.servers(case).contains("pod-3"), "{case}: a client has pod-3");
    }
    Ok(())
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
