//! `shunt services --watch`, and without an agent.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt::serve::presence::Presence;
use shunt::serve::query::Objects;
use shunt_testbed::{Netns, eventually};

use crate::world::{SHUNT, World, http_service, http_slices, run_shunt};

/// Runs `shunt services` with these arguments and returns its JSON.
fn services(ns: &Netns, args: &[&str]) -> Result<Value> {
    let args: Vec<&str> = ["services", "--output=json"].iter().chain(args).copied().collect();
    let output = run_shunt(ns, &args)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("no JSON")
}

fn frontends(picture: &Value) -> impl Iterator<Item = &Value> {
    let services = picture["services"].as_array().into_iter().flatten();
    services.flat_map(|service| service["frontends"].as_array().into_iter().flatten())
}

/// The ClusterIP of the Service that [`web`](crate::world::web) describes, over TCP.
fn of_web(picture: &Value) -> Result<&Value> {
    let mut found = frontends(picture);
    let found = found.find(|it| it["address"] == "10.96.0.10" && it["protocol"] == "TCP");
    found.with_context(|| format!("not there: {picture:#}"))
}

fn has_more(picture: &Value) -> bool {
    frontends(picture).any(|it| it["service"] == "default/more:http" && it["state"] == "ok")
}

/// What `shunt services --watch` prints. It ends with the thread of the test.
struct Watch(BufReader<ChildStdout>);

impl Watch {
    fn start(ns: &Netns, more: &[&str]) -> Result<Watch> {
        let mut command = ns.command(SHUNT);
        command.args(["services", "--watch=0.1", "--output=json"]).args(more);
        let child = command.stdout(Stdio::piped()).spawn()?;
        Ok(Watch(BufReader::new(child.stdout.context("a pipe")?)))
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the command ended");
        Ok(serde_json::from_str(&line)?)
    }

    fn wait_for(&mut self, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually("such a picture", || {
            let picture = self.next()?;
            Ok(is_so(&picture).then_some(picture))
        })
    }
}

#[test]
fn watch_shows_rates_and_follows_the_agent() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.start()?;
    // Commands see the objects of the first sync: the agent is ready a little earlier.
    let services = || services(&world.lab.node, &[]);
    eventually("a Service", || Ok(services()?["services"].get(0).map(drop)))?;
    let mut watch = Watch::start(&world.lab.node, &[])?;
    let first = watch.next()?;
    assert_eq!(of_web(&first)?["newConnectionsPerSecond"], Value::Null);
    let second = watch.next()?;
    assert_eq!(of_web(&second)?["newConnectionsPerSecond"], 0.0);

    let mut connections = Vec::new();
    for _ in 0..5 {
        connections.push(world.lab.from(&world.lab.client).connect("10.96.0.10:80")?);
    }
    let (mut before, mut rates) = (0, 0);
    let still = loop {
        let picture = watch.next()?;
        let found = of_web(&picture)?;
        let now = found["newConnections"].as_u64().context("a number")?;
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
    let changed = watch.wait_for(has_more)?;
    let revision = |picture: &Value| picture["revision"].as_u64();
    assert!(revision(&changed) > revision(&still));

    agent.stop()?;
    // It may end while it answers, which is another reason.
    let reason = "no shunt runs in this network namespace; the objects are old";
    let silent = watch.wait_for(|picture| picture["problems"][0] == reason)?;
    assert_eq!(of_web(&silent)?["state"], "ok");
    // Revisions of another agent are others, even if the numbers are equal.
    world.manifests.remove("more.yaml")?;
    let _agent = world.start()?;
    watch.wait_for(|picture| picture["problems"] == json!([]) && !has_more(picture))?;
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
    let is_old = |picture: &Value| {
        let problem = picture["problems"][0].as_str().unwrap_or_default();
        problem.contains(" closed the connection ") && problem.ends_with("; the objects are old")
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
        frontends(picture)
            .map(|it| (name(it), it["newConnections"].as_u64().unwrap_or_default(), rate(it)))
            .collect()
    };
    let _before = connect("10.96.0.43:80", 4)?;
    let picture = services(node, &["--sort=connections"])?;
    assert_eq!(order(&picture)[0], ("default/quiet:http".to_owned(), 4, 0.0));
    assert_eq!((&picture["source"], frontends(&picture).count()), (&json!("kernel"), 6));
    let without = "no shunt runs in this network namespace; this is what the kernel has";
    assert_eq!(picture["problems"], json!([without]));
    let first = frontends(&picture).next().context("a frontend")?;
    assert_eq!((&first["state"], &first["endpointsUsed"]), (&json!("no-agent"), &json!(2)));
    let idle = services(node, &["idle"])?;
    assert!(frontends(&idle).all(|it| it["service"] == "default/idle:http"), "{idle:#}");

    let mut watch = Watch::start(node, &["--sort=rate"])?;
    watch.next()?;
    let _busy = connect("[fd00:96::41]:80", 9)?;
    let picture = watch.wait_for(|picture| order(picture)[0].2 > 0.0)?;
    assert_eq!(order(&picture)[0].0, "default/busy:http");
    let _agent = world.start()?;
    watch.wait_for(|picture| picture["source"] == "agent")?;
    Ok(())
}
