//! `shunt services`: what it shows is what the kernel and the objects have.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt::serve::presence::Presence;
use shunt::serve::query::Objects;
use shunt_testbed::{EndpointSlice, Flow, Netns, Protocol, Service};

use crate::table::{Case, Family, Frontend};
use crate::world::{
    CLUSTER_CIDR, SHUNT, World, http_service, http_slices, manifest, on_all_protocols, run_shunt,
    slices, target_ports, web,
};

/// Runs `shunt services` with these arguments and returns its JSON.
fn services(ns: &Netns, args: &[&str]) -> Result<Value> {
    let args: Vec<&str> = ["services", "--output=json"].iter().chain(args).copied().collect();
    let output = run_shunt(ns, &args)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("no JSON")
}

fn text(ns: &Netns, args: &[&str]) -> Result<String> {
    let args: Vec<&str> = ["services"].iter().chain(args).copied().collect();
    let output = run_shunt(ns, &args)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Waits until the picture is as `is_so` wants it.
fn wait_for(ns: &Netns, args: &[&str], is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let start = Instant::now();
    loop {
        let picture = services(ns, args)?;
        if is_so(&picture) {
            return Ok(picture);
        }
        ensure!(start.elapsed() < Duration::from_secs(20), "still {picture:#}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until commands see the objects of the first sync: the agent is ready a little earlier.
fn wait_for_services(ns: &Netns) -> Result<Value> {
    wait_for(ns, &[], |picture| picture["services"].as_array().is_some_and(|it| !it.is_empty()))
}

fn frontends(picture: &Value) -> impl Iterator<Item = &Value> {
    let services = picture["services"].as_array().into_iter().flatten();
    services.flat_map(|service| service["frontends"].as_array().into_iter().flatten())
}

/// The frontend of a way to reach a Service.
fn frontend(picture: &Value, case: Case) -> Result<&Value> {
    let (kind, address) = match case.frontend {
        Frontend::ClusterIp => ("ClusterIP", json!(case.address().ip())),
        Frontend::ExternalIp => ("ExternalIP", json!(case.address().ip())),
        Frontend::LoadBalancer => ("LoadBalancer", json!(case.address().ip())),
        Frontend::NodePort => ("NodePort", Value::Null),
    };
    let family = case.family.of("IPv4", "IPv6");
    let is_it = |it: &&Value| {
        it["kind"] == kind
            && it["address"] == address
            && it["family"] == family
            && it["port"] == case.address().port()
            && it["protocol"] == case.protocol.to_string()
    };
    let mut found = frontends(picture).filter(is_it);
    found.next().with_context(|| format!("no {case} in {picture:#}"))
}

fn states<'a>(picture: &'a Value, service: &str) -> Vec<&'a str> {
    let mut states: Vec<&str> = frontends(picture)
        .filter(|it| it["service"].as_str().is_some_and(|it| it.starts_with(service)))
        .filter_map(|it| it["state"].as_str())
        .collect();
    states.dedup();
    states
}

fn count(frontend: &Value) -> (u64, f64, f64) {
    let number = |name: &str| frontend[name].as_f64().unwrap_or(-1.0);
    let connections = frontend["newConnections"].as_u64().unwrap_or(u64::MAX);
    (connections, number("endpointsUsed"), number("endpointsListed"))
}

#[test]
fn new_connections_are_counted_for_the_frontend_that_got_them() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    wait_for_services(&world.lab.node)?;
    let tcp = |frontend, family| Case { frontend, family, protocol: Protocol::Tcp };
    let wanted = [
        (tcp(Frontend::ClusterIp, Family::V4), 3),
        (tcp(Frontend::LoadBalancer, Family::V6), 2),
        (tcp(Frontend::NodePort, Family::V4), 4),
    ];
    let mut connections = Vec::new();
    for (case, times) in &wanted {
        for _ in 0..*times {
            connections.push(world.lab.from(&world.lab.client).connect(case.address())?);
        }
    }
    let picture = services(&world.lab.node, &[])?;
    assert_eq!(picture["source"], "agent");
    assert_eq!(picture["node"], "node-1");
    assert_eq!(picture["problems"], json!([]));
    let total: u64 = frontends(&picture).map(|it| count(it).0).sum();
    assert_eq!((frontends(&picture).count(), total), (24, 9));
    for (case, times) in wanted {
        let found = frontend(&picture, case)?;
        assert_eq!(count(found), (times, 3.0, 3.0), "{case}");
        assert_eq!(found["newConnectionsPerSecond"], Value::Null);
        assert_eq!((&found["state"], &found["policy"]), (&json!("ok"), &json!("Cluster")));
    }
    let node_port = frontend(&picture, tcp(Frontend::NodePort, Family::V4))?;
    assert_eq!(node_port["nodeAddresses"], json!(["192.0.2.10"]));
    assert_eq!(node_port["endpoints"], Value::Null);

    let table = text(&world.lab.node, &["-o", "wide"])?;
    for line in [
        "default/web:tcp   ClusterIP     10.96.0.10:80/TCP            Cluster        3/3            3  ok",
        "default/web:tcp   NodePort      192.0.2.10:30080/TCP         Cluster        3/3            4  ok",
    ] {
        assert!(table.contains(line), "no {line:?} in\n{table}");
    }
    let json = services(&world.lab.node, &["web"])?;
    let yaml = text(&world.lab.node, &["-o", "yaml", "web"])?;
    let mut yaml: Value = serde_saphyr::from_str(&yaml)?;
    assert_eq!(json["services"][0]["frontends"][0]["endpoints"][0]["address"], "10.244.0.11");
    yaml["taken"] = json["taken"].clone();
    assert_eq!(yaml, json);
    Ok(())
}

#[test]
fn connections_of_a_short_circuit_belong_to_its_frontend() -> Result<()> {
    let world = World::new()?;
    let local = web().spec("externalTrafficPolicy: Local");
    let pods = [&world.lab.pod1, &world.lab.pod3];
    world.manifests.write("web.yaml", manifest(&local, "web", &pods))?;
    let _agent = world.start()?;
    wait_for_services(&world.lab.node)?;
    let vip =
        Case { frontend: Frontend::LoadBalancer, family: Family::V4, protocol: Protocol::Tcp };
    let _connections = [
        world.lab.from(&world.lab.client).connect(vip.address())?,
        world.lab.from(&world.lab.pod2).connect(vip.address())?,
        world.lab.from(&world.lab.pod2).connect(vip.address())?,
    ];
    let picture = services(&world.lab.node, &["-n", "default"])?;
    let found = frontend(&picture, vip)?;
    assert_eq!(count(found), (3, 1.0, 2.0));
    assert_eq!(found["shortCircuit"], json!({"endpointsUsed": 2, "newConnections": 2}));
    assert_eq!((&found["policy"], &found["state"]), (&json!("Local"), &json!("ok")));
    assert_eq!(services(&world.lab.node, &["-n", "other"])?["services"], json!([]));
    Ok(())
}

#[test]
fn state_names_the_reason_why_a_frontend_does_not_serve() -> Result<()> {
    let world = World::new()?;
    let pod3 = [&world.lab.pod3];
    let add = |number: u8, name: &str, service: Service, slices: String| {
        let ips = [format!("10.96.0.{number}"), format!("fd00:96::{number}")];
        let service = on_all_protocols(service, 80, None).cluster_ips(&[&ips[0], &ips[1]]);
        world.manifests.write(&format!("{name}.yaml"), format!("{service}{slices}"))
    };
    let plain = |name: &str| Service::new(name);
    let unready = EndpointSlice::pair("unready", |slice| {
        target_ports(slice).host(&world.lab.pod1, "conditions: {ready: false}")
    });
    let local = plain("local").spec("internalTrafficPolicy: Local");
    let misnamed = EndpointSlice::pair("misnamed", |slice| {
        slice.port("other", Protocol::Tcp, 8080).hosts(&pod3)
    });
    add(21, "empty", plain("empty"), String::new())?;
    add(22, "unready", plain("unready"), unready)?;
    add(23, "local", local, slices("local", &pod3))?;
    add(24, "misnamed", plain("misnamed"), misnamed)?;
    for (number, name) in [(25, "first"), (26, "second")] {
        let service = plain(name)
            .external_ips(&["198.51.100.7"])
            .metadata(&format!("creationTimestamp: 20{number}-01-01T00:00:00Z"));
        add(number, name, service, slices(name, &pod3))?;
    }
    world.manifests.write(
        "ignored.yaml",
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: headless, namespace: default}\n\
         spec: {clusterIP: None, ports: [{port: 80}]}\n",
    )?;
    let _agent = world.start()?;
    let node = &world.lab.node;
    let picture = wait_for(node, &[], |picture| {
        picture["services"].as_array().is_some_and(|services| services.len() == 6)
    })?;
    for (service, wanted) in [
        ("default/empty", &["no-endpoints"][..]),
        ("default/unready", &["endpoints-not-ready"]),
        ("default/local", &["no-local-endpoints"]),
        ("default/misnamed", &["wrong-port-name"]),
        ("default/first", &["ok"]),
    ] {
        assert_eq!(states(&picture, service), wanted, "{service}");
    }
    // It has its ClusterIPs, but not the external IP on three protocols.
    let second: Vec<&Value> = frontends(&picture).filter(|it| it["state"] == "conflict").collect();
    assert_eq!(second.len(), 3, "{picture:#}");
    for frontend in second {
        assert_eq!((&frontend["address"], count(frontend).1), (&json!("198.51.100.7"), 0.0));
        assert_eq!(frontend["newConnections"], Value::Null);
        let reason = frontend["reason"].as_str().unwrap_or_default();
        assert_eq!(reason, "Service default/first has it: that Service is older");
    }
    assert_eq!(picture["ignored"][0]["name"], "headless");
    assert_eq!(picture["ignored"][0]["code"], "ignored-headless");

    let table = text(node, &[])?;
    let summary = "1 Services without frontends: 1 ignored-headless (-o wide)\n";
    assert!(table.ends_with(summary), "{table}");
    let ignored = text(node, &["headless"])?;
    assert!(ignored.starts_with("IGNORED  Service default/headless is headless"), "{ignored}");
    let unready = text(node, &["unready"])?;
    for part in [
        "service          default/unready\n",
        "last change      ",
        "endpoints-not-ready: no endpoint of Service port default/unready:tcp is ready",
        "endpoints of default/unready:tcp (ClusterIP, IPv4)\n",
        "10.244.0.11:8080  node-1 (this node)  -           not ready  no: not ready\n",
    ] {
        assert!(unready.contains(part), "no {part:?} in\n{unready}");
    }
    Ok(())
}

#[test]
fn node_port_without_an_address_of_the_node_is_named() -> Result<()> {
    let world = World::with_web()?;
    let none = "--nodeport-addresses=203.0.113.128/25,fd00:dead::/64";
    let _agent = world.plain_agent().arg(none).start()?;
    let picture = wait_for_services(&world.lab.node)?;
    for found in frontends(&picture) {
        let state = if found["kind"] == "NodePort" { "no-address" } else { "ok" };
        assert_eq!(found["state"], state, "{found:#}");
    }
    let table = text(&world.lab.node, &["web"])?;
    let reason = "none:30080/TCP no-address: nodePortAddresses select no address of this family\n";
    assert!(table.contains(reason), "{table}");
    Ok(())
}

#[test]
fn state_says_where_the_kernel_differs_from_the_plan() -> Result<()> {
    let world = World::with_web()?;
    let shared = ["--own-tables=false", "--drift-check-period=0"];
    let agent = world.agent(CLUSTER_CIDR)?.arg(shared[0]).arg(shared[1]);
    let _agent = agent.start()?;
    let node = &world.lab.node;
    wait_for_services(node)?;
    node.nft(
        "delete element ip shunt service-ips { 10.96.0.10 . tcp . 80 }
         delete element ip shunt service-ips { 10.96.0.10 . udp . 80 }
         add element ip shunt service-ips { 10.96.0.10 . udp . 80 : drop }",
    )?;
    let case = |protocol| Case { frontend: Frontend::ClusterIp, family: Family::V4, protocol };
    for args in [&[][..], &["web"]] {
        let picture = services(node, args)?;
        for (protocol, state, connections) in [
            (Protocol::Tcp, "not-in-kernel", 0),
            (Protocol::Udp, "kernel-differs", 0),
            (Protocol::Sctp, "ok", 0),
        ] {
            let found = frontend(&picture, case(protocol))?;
            assert_eq!(found["state"], state, "{args:?} {protocol}");
            assert_eq!(count(found).0, connections);
        }
        let others = frontends(&picture).filter(|it| it["state"] != "ok").count();
        assert_eq!(others, 2, "{picture:#}");
    }
    Ok(())
}

#[test]
fn refused_frontend_is_in_quarantine() -> Result<()> {
    let world = World::with_web()?;
    let library = std::env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(
        library.is_file(),
        "{} is missing, which cargo builds with this test",
        library.display()
    );
    let preload = format!("LD_PRELOAD={}", library.display());
    let agent = world.agent(CLUSTER_CIDR)?;
    let wrapper = ["env", &preload, "SHUNT_REFUSE=10.96.0.10:80 [fd00:96::10]:80"];
    let agent = agent.wrapper(&wrapper).start()?;
    agent.wait_for_log(&["refuses"])?;
    let refused = |it: &Value| it["state"] == "quarantined";
    let picture = wait_for(&world.lab.node, &[], |picture| frontends(picture).any(refused))?;
    for found in frontends(&picture) {
        assert_eq!(refused(found), found["kind"] == "ClusterIP", "{found:#}");
    }
    let table = text(&world.lab.node, &[])?;
    let problem = "PROBLEM  the kernel refuses 10.96.0.10:80/tcp of default/web:tcp: ";
    assert!(table.starts_with(problem), "{table}");
    Ok(())
}

#[test]
fn tracked_connections_are_counted_by_endpoint_and_state() -> Result<()> {
    let world = World::with_web()?;
    let pods = [&world.lab.pod1, &world.lab.pod2];
    world.lab.pod2.nft(
        "table inet silence {
             chain input { type filter hook input priority 0; meta l4proto { tcp, udp } drop; }
         }",
    )?;
    world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
    let _agent = world.start()?;
    let (node, client) = (&world.lab.node, &world.lab.client);
    wait_for_services(node)?;
    // With so many, both pods get some.
    const FLOWS: u64 = 20;
    for family in Family::ALL {
        for kind in [Frontend::ClusterIp, Frontend::NodePort] {
            let case = |protocol| Case { frontend: kind, family, protocol };
            let to: SocketAddr = case(Protocol::Tcp).address();
            let source: IpAddr = client.ip_like(to.ip()).context("an address")?;
            let mut flows = client.run(|| {
                let protocols = [Protocol::Tcp, Protocol::Udp];
                let open = |protocol| Flow::open(protocol, source, to);
                let all = protocols.into_iter().flat_map(|it| (0..FLOWS).map(move |_| it));
                all.map(open).collect::<Result<Vec<Flow>>>()
            })?;
            let mut asked: Vec<&mut Flow> = flows.iter_mut().collect();
            Flow::ask_all(&mut asked, Duration::from_millis(300))?;
            let args = ["default/web", "--connections"];
            let picture = services(node, &args)?;
            let connections = |protocol, pod: usize| {
                let endpoints = &frontend(&picture, case(protocol))?["endpoints"];
                let number =
                    |name: &str| endpoints[pod]["connections"][name].as_u64().context("a number");
                Ok::<_, anyhow::Error>([
                    number("established")?,
                    number("synSent")?,
                    number("unreplied")?,
                    number("other")?,
                ])
            };
            let [established, 0, 0, 0] = connections(Protocol::Tcp, 0)? else {
                anyhow::bail!("{kind:?} {family:?} {picture:#}");
            };
            assert_eq!(connections(Protocol::Tcp, 1)?, [0, FLOWS - established, 0, 0]);
            assert!((1..FLOWS).contains(&established), "{established}");
            let half_open = flows.iter().filter(|flow| flow.is_half_open()).count();
            assert_eq!(half_open as u64, FLOWS - established);
            let [replied, 0, 0, 0] = connections(Protocol::Udp, 0)? else {
                anyhow::bail!("{kind:?} {family:?} {picture:#}");
            };
            assert_eq!(connections(Protocol::Udp, 1)?, [0, 0, FLOWS - replied, 0]);
            assert_eq!(connections(Protocol::Sctp, 0)?, [0; 4]);

            // The endpoint goes, its connection stays.
            if kind == Frontend::NodePort && family == Family::V6 {
                world.manifests.write("web.yaml", manifest(&web(), "web", &pods[1..]))?;
                let gone = |picture: &Value| {
                    frontend(picture, case(Protocol::Tcp))
                        .is_ok_and(|it| it["unlistedConnections"]["established"] == established)
                };
                wait_for(node, &args, gone)?;
                let table = text(node, &args)?;
                let unlisted = "to endpoints that are not listed any more: ";
                assert!(table.contains(unlisted), "{table}");
            }
        }
    }
    let without = services(node, &["default/web"])?;
    let endpoint = &without["services"][0]["frontends"][0]["endpoints"][0];
    assert_eq!(endpoint["connections"], Value::Null);
    Ok(())
}

/// `shunt services --watch`, killed when it is dropped.
struct Watch {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watch {
    fn start(ns: &Netns, more: &[&str]) -> Result<Watch> {
        let mut command = Command::new(SHUNT);
        command
            .args(["services", "--watch=0.1", "--output=json", "--netns"])
            .arg(ns.path())
            .args(more);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Watch { child, lines })
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.lines.read_line(&mut line)? > 0, "the command ended");
        Ok(serde_json::from_str(&line)?)
    }

    fn wait_for(&mut self, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let start = Instant::now();
        loop {
            let picture = self.next()?;
            if is_so(&picture) {
                return Ok(picture);
            }
            ensure!(start.elapsed() < Duration::from_secs(20), "still {picture:#}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_shows_rates_and_follows_the_agent() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.start()?;
    wait_for_services(&world.lab.node)?;
    let case = Case { frontend: Frontend::ClusterIp, family: Family::V4, protocol: Protocol::Tcp };
    let mut watch = Watch::start(&world.lab.node, &[])?;
    let first = watch.next()?;
    assert_eq!(frontend(&first, case)?["newConnectionsPerSecond"], Value::Null);
    let second = watch.next()?;
    assert_eq!(frontend(&second, case)?["newConnectionsPerSecond"], 0.0);

    let mut connections = Vec::new();
    for _ in 0..5 {
        connections.push(world.lab.from(&world.lab.client).connect(case.address())?);
    }
    let (mut before, mut rates) = (0, 0);
    let still = loop {
        let picture = watch.next()?;
        let found = frontend(&picture, case)?;
        let now = count(found).0;
        let rate = found["newConnectionsPerSecond"].as_f64().context("a rate")?;
        assert_eq!(rate > 0.0, now > before, "{found:#}, before {before}");
        rates += u32::from(rate > 0.0);
        if now == 5 && rate == 0.0 {
            break picture;
        }
        before = now;
    };
    assert!(rates > 0);

    let more = http_service("more", &["10.96.0.44", "fd00:96::44"]);
    let slices = http_slices("more", &[&world.lab.pod1]);
    world.manifests.write("more.yaml", format!("{more}{slices}"))?;
    let changed = watch.wait_for(|picture| states(picture, "default/more") == ["ok"])?;
    let revision = |picture: &Value| picture["revision"].as_u64();
    assert!(revision(&changed) > revision(&still));

    agent.stop()?;
    // It may end while it answers, which is another reason.
    let reason = "no shunt runs in this network namespace; the objects are old";
    let silent = watch.wait_for(|picture| picture["problems"][0] == reason)?;
    assert_eq!(states(&silent, "default/web"), ["ok"]);
    // Revisions of another agent are others, even if the numbers are equal.
    world.manifests.remove("more.yaml")?;
    let _agent = world.start()?;
    watch.wait_for(|picture| {
        picture["problems"] == json!([]) && states(picture, "default/more").is_empty()
    })?;
    Ok(())
}

/// An agent may end while it answers.
#[test]
fn watch_goes_on_after_a_failed_answer() -> Result<()> {
    let ns = Netns::new()?;
    let presence = ns.run(|| Ok(Presence::take()?))?.context("no other agent")?;
    // Ends with the process.
    std::thread::spawn(move || -> Result<()> {
        let (stream, _) = presence.listener.accept()?;
        BufReader::new(&stream).read_line(&mut String::new())?;
        serde_json::to_writer(&stream, &Objects::default())?;
        drop(stream);
        loop {
            drop(presence.listener.accept()?);
        }
    });
    let mut watch = Watch::start(&ns, &[])?;
    watch.next()?;
    let reason = " closed the connection; the objects are old";
    let is_old = |picture: &Value| {
        picture["problems"][0].as_str().is_some_and(|problem| problem.ends_with(reason))
    };
    watch.wait_for(is_old)?;
    assert!(is_old(&watch.next()?));
    Ok(())
}

/// The kernel has names and counters.
#[test]
fn without_an_agent_the_busiest_services_of_the_kernel_come_first() -> Result<()> {
    let world = World::new()?;
    for (name, number) in [("busy", 41), ("idle", 42), ("quiet", 43)] {
        let service =
            http_service(name, &[&format!("10.96.0.{number}"), &format!("fd00:96::{number}")]);
        let slices = http_slices(name, &[&world.lab.pod1, &world.lab.pod2]);
        world.manifests.write(&format!("{name}.yaml"), format!("{service}{slices}"))?;
    }
    let agent = world.start()?;
    agent.stop()?;
    let node = &world.lab.node;
    let connect = |to: &str, times: usize| {
        let client = world.lab.from(&world.lab.client);
        (0..times).map(|_| client.connect(to)).collect::<Result<Vec<_>>>()
    };
    let order = |picture: &Value| -> Vec<(String, u64, f64)> {
        let name = |it: &Value| it["service"].as_str().unwrap_or_default().to_owned();
        let rate = |it: &Value| it["newConnectionsPerSecond"].as_f64().unwrap_or_default();
        frontends(picture).map(|it| (name(it), count(it).0, rate(it))).collect()
    };
    let _before = connect("10.96.0.43:80", 4)?;
    let picture = services(node, &["--sort=connections"])?;
    assert_eq!(order(&picture)[0], ("default/quiet:http".to_owned(), 4, 0.0));
    assert_eq!((&picture["source"], frontends(&picture).count()), (&json!("kernel"), 6));
    let without = "no shunt runs in this network namespace; this is what the kernel has";
    assert_eq!(picture["problems"], json!([without]));
    let first = frontends(&picture).next().context("a frontend")?;
    assert_eq!((&first["state"], &first["endpointsUsed"]), (&json!("no-agent"), &json!(2)));
    assert!(text(node, &["idle"])?.contains("10.96.0.42:80/TCP"));
    assert!(!text(node, &["idle"])?.contains("busy"));

    let mut watch = Watch::start(node, &["--sort=rate"])?;
    watch.next()?;
    let _busy = connect("[fd00:96::41]:80", 9)?;
    let picture = watch.wait_for(|picture| order(picture)[0].2 > 0.0)?;
    assert_eq!(order(&picture)[0].0, "default/busy:http");
    let _agent = world.start()?;
    watch.wait_for(|picture| picture["source"] == "agent")?;
    Ok(())
}

#[test]
fn manifests_show_the_plan_without_an_agent() -> Result<()> {
    let world = World::with_web()?;
    let path = world.manifests.path().display().to_string();
    let settings = ["--hostname-override=node-1", "--nodeport-addresses=192.0.2.0/24,::/0"];
    let args = ["services", "web", "-o", "json", "--manifests", &path, settings[0], settings[1]];
    let output = Command::new(SHUNT).args(args).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let picture: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&picture["source"], &picture["revision"]), (&json!("manifests"), &Value::Null));
    assert_eq!(frontends(&picture).count(), 24);
    for found in frontends(&picture) {
        assert_eq!(found["newConnections"], Value::Null);
        // The interfaces of the node are unknown, so its addresses for node ports are, too.
        assert_eq!(found["nodeAddresses"], Value::Null);
        assert_eq!(found["state"], "ok", "{found:#}");
    }
    let node = &frontends(&picture).next().context("a frontend")?["endpoints"][0];
    assert_eq!((&node["local"], &node["used"]), (&json!(true), &json!(true)));

    let output = Command::new(SHUNT).args(["services", "--manifests", &path]).output()?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let note = "\nplanned from manifests: counters and the kernel's state are unknown\n";
    assert!(table.ends_with(note), "{table}");
    Ok(())
}

#[test]
fn errors_say_what_to_do() -> Result<()> {
    let fails = |ns: &Netns, args: &[&str]| -> Result<String> {
        let output = run_shunt(ns, &[&["services"], args].concat())?;
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let world = World::with_web()?;
    let node = &world.lab.node;
    // Nor are there tables, which would be shown.
    assert_eq!(
        fails(node, &[])?,
        "error: no shunt runs in this network namespace; --manifests shows the Services in files\n"
    );
    assert_eq!(
        fails(node, &["--masquerade-all"])?,
        "error: --config and its flags need --manifests; the running agent has its own\n"
    );
    let _agent = world.start()?;
    wait_for_services(node)?;
    assert_eq!(
        fails(node, &["shop/checkout"])?,
        "error: there is no Service shop/checkout; `shunt services` lists all\n"
    );
    assert_eq!(
        fails(node, &["shop/web", "-n", "default"])?,
        "error: shop/web is not in the namespace default of --namespace; give one of both\n"
    );
    Ok(())
}
