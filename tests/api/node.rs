//! The agent's own Node.

use std::time::Duration;

use anyhow::Result;
use shunt_fake_apiserver::{Answer, Api, Case, Fault, Key, Kind, both, standin_only};
use shunt_testbed::{Agent, Echo, EndpointSlice, HEALTH_PORT, Node, Protocol};

use crate::status;
use crate::world::{SHUNT, WEB, World, cluster_ip_service, web};

pub(crate) fn cases() -> Vec<Case> {
    both![
        node_may_appear_late,
        deleted_node_keeps_its_zone_and_addresses,
        a_restart_with_a_deleted_node_changes_no_rule,
        other_nodes_do_not_matter,
    ]
    .into_iter()
    .chain(standin_only![
        a_restart_without_a_readable_node_changes_no_rule,
        a_start_without_a_readable_node_opens_no_node_port,
        tables_that_remember_no_node_stay_until_it_is_read,
        a_restart_without_readable_service_cidrs_changes_no_rule,
    ])
    .collect()
}

const ZONE: &str = "topology.kubernetes.io/zone";

fn key() -> Key {
    Key::new(Kind::Node, "node-1")
}

/// [`web`] with `pod-1` for zone a and `pod-2` for zone b.
fn put_zones(world: &World) -> Result<()> {
    world.api.put(web())?;
    let lab = &world.lab;
    world.api.put(EndpointSlice::pair("web", |slice| {
        slice
            .port("tcp", Protocol::Tcp, 8080)
            .host(&lab.pod1, "conditions: {ready: true}, hints: {forZones: [{name: a}]}")
            .host(&lab.pod2, "conditions: {ready: true}, hints: {forZones: [{name: b}]}")
    }))
}

fn node_may_appear_late(api: Api) -> Result<()> {
    let world = World::new(api)?;
    world.api.delete(&key())?;
    put_zones(&world)?;
    let agent = world.agent()?.spawn()?;
    // Without a Node there is no zone, and the node is not fit for load balancers.
    world.assert_web_becomes(&["pod-1", "pod-2"]);
    assert_eq!(agent.http_status("/healthz")?, 503);
    const MISSING: &str = "the API has no Node node-1";
    agent.wait_for_log(&["ERROR", MISSING, "hostnameOverride"])?;
    // Another sync is no news about the node.
    world.mark()?;
    assert_eq!(agent.log().matches(MISSING).count(), 1, "{}", agent.log());
    status::wait_for(&world, &["PROBLEM", MISSING])?;
    world.api.put(Node::of(&world.lab.node).label(ZONE, "a"))?;
    world.assert_web_becomes(&["pod-1"]);
    agent.wait_for_log(&["the Node has appeared", "node-1"])?;
    status::wait_for(&world, &["OK  "])?;
    agent.wait_ready()
}

/// An address of the node that is not its primary one, and the node port of [`web`] on it.
const SECONDARY: [&str; 2] = ["192.0.2.11:30080", "[2001:db8:2::11]:30080"];

/// A Node that is deleted, or registered again without what controllers write into it, is the same
/// machine: only load balancers look elsewhere.
fn deleted_node_keeps_its_zone_and_addresses(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_zones(&world)?;
    let node = || Node::of(&world.lab.node).label(ZONE, "a");
    world.api.put(node())?;
    let _own_server = Echo::on(&world.lab.node, 30080)?;
    let agent = world.start()?;
    let assert_unchanged = || {
        let client = world.lab.from(&world.lab.client);
        for to in SECONDARY {
            client.tcp(to).reaches(&["node-1"]);
            client.udp(to).reaches(&["node-1"]);
        }
        client.tcp("192.0.2.10:30080").reaches(&["pod-1"]);
        client.tcp("[2001:db8:2::10]:30080").reaches(&["pod-1"]);
        world.assert_web(&["pod-1"]);
    };
    assert_unchanged();
    let generation = world.generation()?;

    world.api.delete(&key())?;
    agent
        .wait_for_answer(HEALTH_PORT, "/healthz", |answer| (answer.status == 503).then_some(()))?;
    assert_eq!(agent.http_status("/livez")?, 200);
    assert_unchanged();
    world.api.put(Node::without_addresses(&world.lab.node).label(ZONE, "a"))?;
    agent.wait_ready()?;
    assert_unchanged();
    assert_eq!(world.generation()?, generation);

    // What a controller writes then counts.
    world.api.put(Node::of(&world.lab.node).label(ZONE, "b"))?;
    world.assert_web_becomes(&["pod-2"]);
    Ok(())
}

/// A world whose Node has a zone and pod CIDRs, a server of its own on the node's port 30080, and
/// an agent that knows its pods by these CIDRs.
struct Zoned {
    world: World,
    _own_server: Echo,
}

impl Zoned {
    fn new(api: Api) -> Result<Zoned> {
        let world = World::new(api)?;
        put_zones(&world)?;
        let _own_server = Echo::on(&world.lab.node, 30080)?;
        let zoned = Zoned { world, _own_server };
        zoned.put_node()?;
        Ok(zoned)
    }

    fn put_node(&self) -> Result<()> {
        let node = Node::of(&self.world.lab.node).label(ZONE, "a");
        self.world.api.put(node.spec("podCIDRs: ['10.244.0.0/16', 'fd00:244::/48']"))
    }

    fn spawn(&self) -> Result<Agent> {
        let config = format!(
            "mode: nftables\ndetectLocalMode: NodeCIDR\nclientConnection: {{kubeconfig: {:?}}}\n",
            self.world.kubeconfig.path()
        );
        let agent = Agent::builder(SHUNT, &self.world.lab.node).arg("--own-tables=false");
        agent.arg("-v=4").config(&config)?.spawn()
    }

    /// Runs an agent until it has programmed everything.
    fn programmed(&self) -> Result<()> {
        let agent = self.spawn()?;
        agent.wait_ready()?;
        self.assert_rules();
        agent.stop()
    }

    /// Asserts the zone, the pod CIDR and the node port address.
    #[track_caller]
    fn assert_rules(&self) {
        let client = self.world.lab.from(&self.world.lab.client);
        for to in WEB {
            client.tcp(to).reaches(&["pod-1"]).source_masqueraded();
        }
        client.tcp("192.0.2.10:30080").reaches(&["pod-1"]);
        client.tcp("[2001:db8:2::10]:30080").reaches(&["pod-1"]);
        for to in SECONDARY {
            client.tcp(to).reaches(&["node-1"]);
        }
    }

    /// Makes a Service and waits until it works: everything before is programmed, too.
    #[track_caller]
    fn assert_follows(&self) -> Result<()> {
        self.world.api.put(cluster_ip_service("new", "10.96.0.30"))?;
        self.world.put_slices("new", &[&self.world.lab.pod2])?;
        let client = self.world.lab.from(&self.world.lab.client);
        client.tcp("10.96.0.30:80").eventually().reaches(&["pod-2"]);
        Ok(())
    }
}

/// Asserts that the agent is alive, and that load balancers and `shunt status` know its trouble.
fn assert_tells(zoned: &Zoned, agent: &Agent, words: &[&str]) -> Result<()> {
    agent.wait_for_log(&[&["ERROR"], words].concat())?;
    assert_eq!(agent.http_status("/healthz")?, 503);
    assert_eq!(agent.http_status("/livez")?, 200);
    let text = status::text(&zoned.world)?;
    let is_told = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(text.lines().any(|line| line.starts_with("PROBLEM") && is_told(line)), "{text}");
    Ok(())
}

fn a_restart_with_a_deleted_node_changes_no_rule(api: Api) -> Result<()> {
    let zoned = Zoned::new(api)?;
    zoned.programmed()?;
    zoned.world.api.delete(&key())?;
    let agent = zoned.spawn()?;
    zoned.assert_follows()?;
    zoned.assert_rules();
    assert_tells(&zoned, &agent, &["the API has no Node node-1", "last known zone"])?;
    zoned.put_node()?;
    agent.wait_ready()?;
    zoned.assert_rules();
    Ok(())
}

fn a_restart_without_a_readable_node_changes_no_rule(api: Api) -> Result<()> {
    let zoned = Zoned::new(api)?;
    zoned.programmed()?;
    let standin = zoned.world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(503)).of(Kind::Node));
    let agent = zoned.spawn()?;
    agent.wait_for_log_within(LISTS, &["WARN", "programming without the lists of: Node"])?;
    zoned.assert_follows()?;
    zoned.assert_rules();
    assert_tells(
        &zoned,
        &agent,
        &["the API server has not sent the Node node-1", "last known zone"],
    )?;
    // Meanwhile the Node has got another zone.
    let node = Node::of(&zoned.world.lab.node).label(ZONE, "b");
    zoned.world.api.put(node)?;
    standin.behave();
    zoned.world.assert_web_becomes(&["pod-2"]);
    agent.wait_ready()?;
    agent.stop()?;
    // The tables remember the new zone.
    standin.misbehave(Fault::new(Answer::Status(403)).of(Kind::Node));
    let agent = zoned.spawn()?;
    agent.wait_for_log_within(LISTS, &["WARN", "programming without the lists of: Node"])?;
    assert_tells(
        &zoned,
        &agent,
        &["the API server has not sent the Node node-1", "last known zone"],
    )?;
    zoned.world.assert_web(&["pod-2"]);
    Ok(())
}

/// Longer than the agent waits for the Node.
const LISTS: Duration = Duration::from_secs(60);

fn a_start_without_a_readable_node_opens_no_node_port(api: Api) -> Result<()> {
    let zoned = Zoned::new(api)?;
    let standin = zoned.world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(429)).of(Kind::Node));
    let assert_closed = || -> Result<()> {
        zoned.world.assert_web_becomes(&["pod-1", "pod-2"]);
        let client = zoned.world.lab.from(&zoned.world.lab.client);
        for to in ["192.0.2.10:30080", "[2001:db8:2::10]:30080"].iter().chain(&SECONDARY) {
            client.tcp(to).reaches(&["node-1"]);
        }
        Ok(())
    };
    let agent = zoned.spawn()?;
    agent.wait_for_log_within(LISTS, &["WARN", "programming without the lists of: Node"])?;
    assert_closed()?;
    assert_tells(&zoned, &agent, &["has not sent the Node node-1", "node ports are closed"])?;
    agent.stop()?;
    // An agent that finds these tables goes on in the same way.
    let agent = zoned.spawn()?;
    agent.wait_for_log_within(LISTS, &["WARN", "programming without the lists of: Node"])?;
    zoned.assert_follows()?;
    assert_closed()?;
    standin.behave();
    agent.wait_ready()?;
    zoned.assert_rules();
    Ok(())
}

fn tables_that_remember_no_node_stay_until_it_is_read(api: Api) -> Result<()> {
    let zoned = Zoned::new(api)?;
    zoned.programmed()?;
    zoned.world.lab.node.nft("flush chain ip shunt node; flush chain ip6 shunt node")?;
    let standin = zoned.world.standin()?;
    standin.misbehave(Fault::new(Answer::Status(503)).of(Kind::Node));
    let generation = zoned.world.generation()?;
    zoned.world.put_slices("web", &[&zoned.world.lab.pod3])?;
    let agent = zoned.spawn()?;
    agent.wait_for_log_within(LISTS, &["WARN", "programming without the lists of: Node"])?;
    assert_tells(&zoned, &agent, &["has not sent the Node node-1", "nothing is programmed"])?;
    zoned.assert_rules();
    assert_eq!(zoned.world.generation()?, generation);
    standin.behave();
    agent.wait_ready()?;
    zoned.world.assert_web(&["pod-3"]);
    Ok(())
}

/// With neither permission nor an answer for ServiceCIDRs.
fn a_restart_without_readable_service_cidrs_changes_no_rule(api: Api) -> Result<()> {
    /// Of no Service.
    const UNUSED: [&str; 2] = ["10.96.0.77:80", "[fd00:96::77]:80"];
    let zoned = Zoned::new(api)?;
    zoned.programmed()?;
    let client = zoned.world.lab.from(&zoned.world.lab.client);
    let standin = zoned.world.standin()?;
    for (code, told) in [(403, "system:node-proxier"), (503, "programming without the lists of")] {
        standin.misbehave(Fault::new(Answer::Status(code)).of(Kind::ServiceCidr));
        let agent = zoned.spawn()?;
        agent.wait_for_log_within(LISTS, &["WARN", told])?;
        agent.wait_ready()?;
        zoned.assert_follows()?;
        zoned.assert_rules();
        let told = status::text(&zoned.world)?;
        assert!(code != 403 || told.contains(", connected") && !told.contains("PROBLEM"), "{told}");
        UNUSED.iter().for_each(|to| client.tcp(to).dropped());
        agent.stop()?;
        standin.behave();
        zoned.world.api.delete(&Key::new(Kind::Service, "new"))?;
    }
    // The first list counts.
    standin.misbehave(Fault::new(Answer::Status(404)).of(Kind::ServiceCidr));
    let agent = zoned.spawn()?;
    agent.wait_ready()?;
    UNUSED.iter().for_each(|to| client.tcp(*to).eventually().unhandled());
    Ok(())
}

fn other_nodes_do_not_matter(api: Api) -> Result<()> {
    let world = World::new(api)?;
    put_zones(&world)?;
    world.api.put(Node::of(&world.lab.node).label(ZONE, "a"))?;
    world.api.put(Node::of(&world.lab.node2).label(ZONE, "b"))?;
    let _agent = world.start()?;
    world.assert_web(&["pod-1"]);
    let generation = world.generation()?;
    world.api.put(Node::of(&world.lab.node2).label(ZONE, "c"))?;
    world.api.delete(&Key::new(Kind::Node, "node-2"))?;
    for to in WEB {
        world.lab.from(&world.lab.client).tcp(to).reaches(&["pod-1"]);
    }
    // Whatever it has not asked for cannot come after this.
    world.api.put(Node::of(&world.lab.node).label(ZONE, "b"))?;
    world.assert_web_becomes(&["pod-2"]);
    assert_eq!(world.generation()?, generation + 1);
    Ok(())
}
