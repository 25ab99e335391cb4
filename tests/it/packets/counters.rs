//! The counters of frontends, as nft lists them: they go on while endpoints come and go.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shunt_testbed::{Echo, Host, Protocol};

use crate::table::{Family, Frontend, WEB, addresses, ip};
use crate::world::{CLUSTER_CIDR, TARGET, World, manifest, web};

/// How long an answer may take, and how long to wait for one that does not come: less than until a
/// connection is tried again.
const ANSWER: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(300);

/// A frontend of [`web`]: the maps that count its connections, and its key there.
struct Counted<'a> {
    family: Family,
    protocol: Protocol,
    maps: [&'static str; 2],
    key: String,
    from: [&'a Host; 2],
    to: String,
}

/// The ClusterIP, the ExternalIP and the node port, for each family, TCP and UDP.
fn frontends(world: &World) -> Vec<Counted<'_>> {
    let from = [&world.lab.client, &world.lab.pod1];
    let by_address = ["service-ips", "short-circuit"];
    let by_node_port = ["service-nodeports", "short-circuit-nodeports"];
    let mut all = Vec::new();
    for family in Family::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let word = protocol.to_string().to_lowercase();
            let to = |ip: &str, port| family.of(format!("{ip}:{port}"), format!("[{ip}]:{port}"));
            for frontend in [Frontend::ClusterIp, Frontend::ExternalIp] {
                let ip = ip(frontend, family, WEB).to_string();
                let (key, to) = (format!("{ip} . {word} . 80"), to(&ip, 80));
                all.push(Counted { family, protocol, maps: by_address, key, from, to });
            }
            let node = addresses(&world.lab.node, family)[0].to_string();
            let (key, to) = (format!("{word} . 30080"), to(&node, 30_080));
            all.push(Counted { family, protocol, maps: by_node_port, key, from, to });
        }
    }
    all
}

impl Counted<'_> {
    /// The elements of the frontend, as far as there are any.
    fn elements(&self, world: &World) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for map in self.maps {
            let table = self.family.table();
            let list = world.lab.node.output("nft", &["list", "map", table, "shunt", map])?;
            let element = list.split(&format!("{} counter ", self.key)).nth(1);
            let line = element.and_then(|rest| rest.lines().next());
            found.extend(line.map(str::to_owned));
        }
        Ok(found)
    }

    /// The connections that these have counted.
    fn packets(&self, world: &World) -> Result<usize> {
        let number = |element: &String| -> Result<usize> {
            let number = element.split(' ').nth(1).context("no number")?;
            number.parse().with_context(|| format!("not a counter: {element}"))
        };
        self.elements(world)?.iter().map(number).sum()
    }
}

/// Waits until the ClusterIP, whose policy is Cluster, has this verdict.
fn wait_for(verdict: &str, frontends: &[Counted<'_>], world: &World) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let verdict = format!(" : goto {verdict}");
    loop {
        let elements = frontends[0].elements(world)?;
        if elements.iter().any(|element| element.contains(&verdict)) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no{verdict} in {elements:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Policy Local: connections from the pod count in the maps of the short circuit. Without an endpoint
/// these elements go, and what they have counted stays with the frontend.
#[test]
fn no_connection_is_forgotten_while_endpoints_come_and_go() -> Result<()> {
    let world = World::new()?;
    let lab = &world.lab;
    let fourth = lab.add_pod(&lab.node, "pod-4", [10, 244, 0, 14], "fd00:244::14")?;
    let _server = Echo::on(&fourth, TARGET)?;
    let three = [&lab.pod1, &lab.pod2, &lab.pod3];
    let four = [&lab.pod1, &lab.pod2, &lab.pod3, &fourth];
    let web = web().spec("externalTrafficPolicy: Local");
    let write = |hosts: &[&Host]| world.manifests.write("web.yaml", manifest(&web, "web", hosts));
    write(&three)?;
    let _agent = world.agent(CLUSTER_CIDR)?.start()?;

    let frontends = frontends(&world);
    let mut expected = vec![0; frontends.len()];
    // One endpoint only, on another node: those who ask from outside get no answer.
    let steps: [(&str, &[&Host], usize); 6] = [
        ("lb-3", &three, 3),
        ("lb-4", &four, 3),
        ("lb-3", &three, 3),
        ("reject-no-endpoints", &[], 3),
        ("lb-1", &[&lab.pod3], 1),
        ("lb-3", &three, 3),
    ];
    for (verdict, hosts, times) in steps {
        write(hosts)?;
        wait_for(verdict, &frontends, &world)?;
        for (frontend, expected) in frontends.iter().zip(&mut expected) {
            let context = || format!("{verdict} {} {:?}", frontend.key, frontend.family);
            ensure!(frontend.packets(&world)? == *expected, "after the change: {}", context());
            for from in frontend.from {
                let probe = lab.from(from).probe(frontend.protocol, &frontend.to);
                let patience = if times == 1 { SILENCE } else { ANSWER };
                *expected += probe.tally(times, patience)?.total();
            }
            let counted = frontend.packets(&world)?;
            ensure!(counted == *expected, "{counted}, not {expected}: {}", context());
        }
    }
    Ok(())
}

/// The flags of a table cannot be set later: where tables can be owned, the agent replaces one that
/// is not.
#[test]
fn connections_are_not_forgotten_with_a_replaced_table() -> Result<()> {
    let world = World::with_web()?;
    world.agent(CLUSTER_CIDR)?.arg("--own-tables=false").start()?.kill()?;
    let frontends = frontends(&world);
    let mut counted = Vec::new();
    for (times, frontend) in (1..).zip(&frontends) {
        let probe = world.lab.from(frontend.from[0]).probe(frontend.protocol, &frontend.to);
        counted.push(probe.tally(times, ANSWER)?.total());
    }
    let _agent = world.start()?;
    for (frontend, counted) in frontends.iter().zip(counted) {
        let now = frontend.packets(&world)?;
        if now != counted {
            bail!("{now}, not {counted}: {} {:?}", frontend.key, frontend.family);
        }
    }
    Ok(())
}
