//! `healthCheckNodePort`: what load balancers are told.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{EndpointSlice, Host, Protocol, Service};

use crate::world::{CLUSTER_CIDR, World};

const PORT: u16 = 31_000;
const PRIMARY: [&str; 2] = ["192.0.2.10", "2001:db8:2::10"];
const SECONDARY: [&str; 2] = ["192.0.2.11", "2001:db8:2::11"];

const READY: &str = "conditions: {ready: true}";
const UNREADY: &str = "conditions: {ready: false}";
const TERMINATING: &str = "conditions: {ready: false, serving: true, terminating: true}";
/// As of a Service with `publishNotReadyAddresses`.
const TERMINATING_READY: &str = "conditions: {ready: true, serving: true, terminating: true}";

/// What a load balancer is told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// Nobody listens.
    Refused,
    /// An answer to `GET`.
    Answer { status: u16, weight: Option<String>, kind: Option<String>, body: String },
}

impl Told {
    /// What is told of a Service with so many endpoints on the node.
    fn of(name: &str, endpoints: usize) -> Self {
        Self::Answer {
            status: if endpoints > 0 { 200 } else { 503 },
            weight: Some(endpoints.to_string()),
            kind: Some("application/json".to_owned()),
            body: format!(
                "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"{name}\"\n\t}},\
                 \n\t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": true\n}}"
            ),
        }
    }
}

/// Pods with the fields of their endpoints.
type Endpoints<'a> = &'a [(&'a Host, &'a str)];

/// Asks as load balancers do.
fn ask(host: &Host, ip: &str, port: u16) -> Result<Told> {
    let to = SocketAddr::new(ip.parse()?, port);
    let answer = host.run(|| {
        let mut stream = match TcpStream::connect(to) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot connect to {to}")),
        };
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut answer = String::new();
        let asked = write!(stream, "GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        match asked.and_then(|()| stream.read_to_string(&mut answer)) {
            Ok(_) => Ok(Some(answer)),
            // The listener went while the connection waited in its queue.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error).with_context(|| format!("no answer from {to}")),
        }
    })?;
    let Some(answer) = answer else {
        return Ok(Told::Refused);
    };
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.and_then(|status| status.get(..3)?.parse().ok());
    let header = |name: &str| {
        let mut headers = head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    Ok(Told::Answer {
        status: status.with_context(|| format!("no status: {head}"))?,
        weight: header("X-Load-Balancing-Endpoint-Weight"),
        kind: header("Content-Type"),
        body: body.to_owned(),
    })
}

/// Asks from outside until the answer is that, for some time.
fn eventually(world: &World, ip: &str, port: u16, expected: &Told) -> Result<()> {
    let start = Instant::now();
    loop {
        let told = ask(&world.lab.client, ip, port)?;
        if told == *expected {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(20),
            "at {ip} port {port}:\n{told:?}\ninstead of\n{expected:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// A Service that load balancers ask about.
fn service(name: &str, number: u8) -> Service {
    Service::new(name)
        .node_port("tcp", Protocol::Tcp, 80, 30_000 + u16::from(number))
        .node_port("udp", Protocol::Udp, 80, 30_000 + u16::from(number))
        .cluster_ips(&[&format!("10.96.0.{number}"), &format!("fd00:96::{number}")])
        .load_balancer(&[&format!("203.0.113.{number}"), &format!("2001:db8:113::{number}")])
        .spec("externalTrafficPolicy: Local")
        .spec(&format!("healthCheckNodePort: {}", 31_000 + u16::from(number) % 10))
}

/// Its slices, with these endpoints of each family.
fn slices(name: &str, v4: Endpoints<'_>, v6: Endpoints<'_>) -> String {
    let slice = |slice: EndpointSlice, hosts: Endpoints<'_>| {
        let slice = slice.port("tcp", Protocol::Tcp, 8080).port("udp", Protocol::Udp, 8080);
        hosts.iter().fold(slice, |slice, (host, fields)| slice.host(host, fields))
    };
    format!("{}{}", slice(EndpointSlice::v4(name), v4), slice(EndpointSlice::v6(name), v6))
}

#[test]
fn the_answer_follows_the_endpoints_on_the_node() -> Result<()> {
    let world = World::new()?;
    let (pod1, pod2, pod3) = (&world.lab.pod1, &world.lab.pod2, &world.lab.pod3);
    world.manifests.write("web.yaml", service("web", 10))?;
    let _agent = world.start()?;
    // Endpoints of each family, and how many count.
    let steps: [(Endpoints<'_>, Endpoints<'_>, [usize; 2]); 10] = [
        (&[], &[], [0, 0]),
        (&[(pod1, READY), (pod3, READY)], &[(pod1, READY), (pod3, READY)], [1, 1]),
        (&[(pod1, READY), (pod2, READY), (pod3, READY)], &[(pod3, READY)], [2, 0]),
        (&[(pod1, READY), (pod2, UNREADY)], &[(pod1, READY), (pod2, READY)], [1, 2]),
        (&[(pod1, UNREADY), (pod2, UNREADY)], &[(pod1, UNREADY), (pod2, READY)], [0, 1]),
        (&[(pod1, READY)], &[(pod1, READY)], [1, 1]),
        // It still gets the connections that come, but no load balancer should send more.
        (&[(pod1, TERMINATING)], &[(pod1, TERMINATING)], [0, 0]),
        (&[(pod1, ""), (pod2, TERMINATING)], &[(pod1, TERMINATING), (pod2, "")], [1, 1]),
        (&[(pod1, TERMINATING_READY)], &[(pod1, ""), (pod2, TERMINATING_READY)], [1, 2]),
        (&[(pod3, READY)], &[(pod3, READY)], [0, 0]),
    ];
    for (v4, v6, counts) in steps {
        world.manifests.write("slices.yaml", slices("web", v4, v6))?;
        for (ip, count) in PRIMARY.into_iter().zip(counts) {
            eventually(&world, ip, PORT, &Told::of("web", count))?;
        }
    }
    Ok(())
}

#[test]
fn health_checks_listen_on_node_port_addresses() -> Result<()> {
    let [all, one] = ["[0.0.0.0/0, '::/0']", "[192.0.2.11/32, '2001:db8:2::11/128']"];
    for (addresses, primary, secondary) in
        [("", true, false), (all, true, true), (one, false, true)]
    {
        let world = World::new()?;
        let pods: Endpoints<'_> = &[(&world.lab.pod1, READY)];
        world.manifests.write("web.yaml", service("web", 10))?;
        world.manifests.write("slices.yaml", slices("web", pods, pods))?;
        let addresses = match addresses {
            "" => String::new(),
            addresses => format!("nodePortAddresses: {addresses}\n"),
        };
        let _agent = world.agent(&format!("{CLUSTER_CIDR}{addresses}"))?.start()?;
        for (ips, told) in [(PRIMARY, primary), (SECONDARY, secondary)] {
            let expected = if told { Told::of("web", 1) } else { Told::Refused };
            for ip in ips {
                eventually(&world, ip, PORT, &expected)?;
            }
        }
    }
    Ok(())
}

/// Addresses of node ports come and go; so do the listeners.
#[test]
fn it_follows_the_addresses_of_the_node() -> Result<()> {
    let world = World::new()?;
    let pods: Endpoints<'_> = &[(&world.lab.pod1, READY)];
    world.manifests.write("web.yaml", service("web", 10))?;
    world.manifests.write("slices.yaml", slices("web", pods, pods))?;
    let config =
        format!("{CLUSTER_CIDR}nodePortAddresses: [203.0.113.0/24, '2001:db8:113::/64']\n");
    let _agent = world.agent(&config)?.start()?;
    for ip in ["203.0.113.77/32", "2001:db8:113::77/128"] {
        let bare = ip.split('/').next().unwrap_or_default();
        for _ in 0..2 {
            world.lab.node.ip(&format!("addr add {ip} dev lo"))?;
            eventually(&world, bare, PORT, &Told::of("web", 1))?;
            world.lab.node.ip(&format!("addr del {ip} dev lo"))?;
        }
    }
    Ok(())
}

#[test]
fn services_come_change_and_go() -> Result<()> {
    let world = World::new()?;
    let (pod1, pod2) = (&world.lab.pod1, &world.lab.pod2);
    let _agent = world.start()?;
    let expect = |port, told: &Told| {
        PRIMARY.into_iter().try_for_each(|ip| eventually(&world, ip, port, told))
    };
    let (one, two): (Endpoints<'_>, Endpoints<'_>) =
        (&[(pod1, READY)], &[(pod1, READY), (pod2, READY)]);
    world.manifests.write("a.yaml", format!("{}{}", service("a", 10), slices("a", one, one)))?;
    world.manifests.write("b.yaml", format!("{}{}", service("b", 11), slices("b", two, two)))?;
    expect(PORT, &Told::of("a", 1))?;
    expect(PORT + 1, &Told::of("b", 2))?;

    // Another port.
    let moved = service("a", 10)
        .to_string()
        .replace("healthCheckNodePort: 31000", "healthCheckNodePort: 31002");
    world.manifests.write("a.yaml", format!("{moved}{}", slices("a", one, one)))?;
    expect(PORT + 2, &Told::of("a", 1))?;
    expect(PORT, &Told::Refused)?;

    // Another policy: every node is as good.
    let cluster =
        service("b", 11).to_string().replace("TrafficPolicy: Local", "TrafficPolicy: Cluster");
    world.manifests.write("b.yaml", format!("{cluster}{}", slices("b", two, two)))?;
    expect(PORT + 1, &Told::Refused)?;

    // The port passes to another Service.
    world.manifests.write("b.yaml", format!("{}{}", service("b", 12), slices("b", two, two)))?;
    world.manifests.remove("a.yaml")?;
    expect(PORT + 2, &Told::of("b", 2))?;
    world.manifests.remove("b.yaml")?;
    expect(PORT + 2, &Told::Refused)
}

#[test]
fn a_taken_port_is_reported_and_works_once_it_is_free() -> Result<()> {
    let world = World::new()?;
    let pods: Endpoints<'_> = &[(&world.lab.pod1, READY)];
    let taken = SocketAddr::new(PRIMARY[0].parse()?, PORT);
    let blocker = world.lab.node.run(|| Ok(TcpListener::bind(taken)?))?;
    for (name, number) in [("web", 10), ("other", 11)] {
        let content = format!("{}{}", service(name, number), slices(name, pods, pods));
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    let agent = world.start()?;
    agent.wait_for_log(&["ERROR", "default/web", "healthCheckNodePort", &taken.to_string()])?;
    // It costs that address only.
    eventually(&world, PRIMARY[1], PORT, &Told::of("web", 1))?;
    for ip in PRIMARY {
        eventually(&world, ip, PORT + 1, &Told::of("other", 1))?;
    }
    world.lab.from(&world.lab.client).tcp("203.0.113.10:80").reaches(&["pod-1"]);
    assert_eq!(agent.http_status("/healthz")?, 200);

    drop(blocker);
    eventually(&world, PRIMARY[0], PORT, &Told::of("web", 1))?;
    let complaints =
        agent.log().lines().filter(|line| line.contains("healthCheckNodePort")).count();
    assert_eq!(complaints, 1, "{}", agent.log());
    agent.stop()
}
