//! Runs a scenario: the testbed, its objects, and one step after the other.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use shunt_fake_apiserver::{Answer, Fault, Key, Marker, Verb};
use shunt_testbed::{
    Echo, Exposition, Flow, Host, METRICS_PORT, Occupier, Outcome, Program, Protocol, Topology,
    http_get, patience,
};

use crate::expect::{Sessions, Targets, cells, check};
use crate::language::{AgentStep, Expected, GateStep, Run, Scenario, Selection, Step};
use crate::objects::{NODE, TARGET, expand, frontends, frontends_of};
use crate::subject::{Kind, Process, SHUNT, Source, key};

/// How long what follows a change may take.
const CONVERGENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// How long an open socket waits for its answer.
const ANSWER: Duration = Duration::from_millis(600);

struct World<'a> {
    scenario: &'a Scenario,
    kind: Kind,
    lab: Topology,
    source: Source,
    process: Option<Process>,
    /// The Services that were applied last, by name.
    services: BTreeMap<String, Value>,
    flows: BTreeMap<String, Vec<Flow>>,
    /// Their entries at the last step that compared them.
    tracked: BTreeMap<String, Vec<Option<String>>>,
    zone: Option<String>,
    sessions: Sessions,
    marker: Marker,
    /// Those beside the pods' own.
    servers: Vec<Echo>,
    programs: Vec<Program>,
    occupier: Option<Occupier>,
    generation: u32,
    _pods: Vec<Echo>,
}

/// Runs a scenario. Whatever fails comes with the step, the log and, of packets, rules and flows.
pub(crate) fn run(scenario: &Scenario, kind: Kind) -> Result<()> {
    let mut world = World::new(scenario, kind)?;
    world.apply(&scenario.objects)?;
    world.start()?;
    for (number, step) in scenario.steps.iter().enumerate() {
        if let Err(error) = world.step(step) {
            let log = world.process.as_ref().map(Process::log).unwrap_or_default();
            bail!("step {}, {step:?}\n{error:#}\n── log ──\n{log}", number + 1);
        }
    }
    Ok(())
}

impl Targets for World<'_> {
    fn frontends(
        &self,
        target: &str,
        selection: &Selection,
    ) -> Result<Vec<(Protocol, SocketAddr)>> {
        match target.strip_prefix("number ") {
            Some(number) => frontends_of(number.parse()?, selection),
            None => {
                let service = self.services.get(target);
                frontends(service.with_context(|| format!("no Service {target:?}"))?, selection)
            }
        }
    }

    fn host(&self, name: &str) -> Result<&Host> {
        let name = if name == "node" { "node-1" } else { name };
        let found = self.lab.hosts().into_iter().find(|host| host.name == name);
        found.with_context(|| format!("there is no host {name:?}"))
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, kind: Kind) -> Result<Self> {
        let lab = Topology::new()?;
        if scenario.bridge {
            lab.put_pods_on_bridge()?;
        }
        let pods = lab.serve(TARGET)?;
        let source = Source::new(&lab, kind)?;
        source.configure(&scenario.config)?;
        let mut world = Self {
            scenario,
            kind,
            lab,
            source,
            process: None,
            services: BTreeMap::new(),
            flows: BTreeMap::new(),
            tracked: BTreeMap::new(),
            zone: None,
            sessions: Sessions::default(),
            marker: Marker::default(),
            servers: Vec::new(),
            programs: Vec::new(),
            occupier: None,
            generation: 0,
            _pods: pods,
        };
        world.serve(&scenario.servers)?;
        world.ip(&scenario.ip)?;
        if matches!(kind, Kind::Manifests | Kind::Standin) {
            // What a cluster has from the start, and kube-apiserver makes by itself.
            world.put(&json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": {"name": "kubernetes"},
                "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/108"]},
            }))?;
        }
        let internal_ips =
            scenario.internal_ips.clone().unwrap_or_else(|| NODE.map(str::to_owned).into());
        let addresses: Vec<Value> =
            internal_ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        if !addresses.is_empty() {
            world.put(&json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": world.lab.node.name},
                "status": {"addresses": addresses},
            }))?;
        }
        Ok(world)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Apply(objects) => {
                self.apply(objects)?;
                self.settle()
            }
            Step::Write(objects) => self.apply(objects),
            Step::Delete(names) => {
                names.iter().try_for_each(|name| self.delete(name))?;
                self.settle()
            }
            Step::Expect(table) => {
                check(&self.lab, &self.sessions, &cells(self, table, false)?, false)
            }
            Step::Eventually(table) => {
                check(&self.lab, &self.sessions, &cells(self, table, false)?, true)
            }
            Step::Explain(table) => {
                self.process()?.shunt()?;
                check(&self.lab, &self.sessions, &cells(self, table, true)?, false)
            }
            Step::Agent(AgentStep::Start) => self.start(),
            Step::Agent(AgentStep::Spawn) => self.spawn(),
            Step::Agent(AgentStep::Restart) => {
                self.end(false)?;
                self.start()
            }
            Step::Agent(step) => self.end(*step == AgentStep::Kill),
            Step::Log(words) => self.line(words).map(drop),
            Step::LogOnce(words) => {
                let found = self.line(words)?;
                let log = self.process()?.shunt()?.log();
                let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
                let count = log.lines().filter(has_all).count();
                ensure!(count == 1, "{count} lines such as {found}");
                Ok(())
            }
            Step::Metrics(samples) => self.wait_for_metrics(|scraped| {
                samples.iter().all(|(name, value)| sample(scraped, name) == Some(*value))
            }),
            Step::Servers(servers) => self.serve(servers),
            Step::Config(fields) => {
                const RELOADS: &str = "shunt_config_reloads_total{result=success}";
                let before = self.process()?.shunt()?.http_get(METRICS_PORT, "/metrics")?;
                let before = sample(&Exposition::parse(&before.body)?, RELOADS);
                self.source.configure(fields)?;
                self.wait_for_metrics(|scraped| sample(scraped, RELOADS) > before)?;
                self.settle()
            }
            // A probe meets what the kernel chooses, each time anew.
            Step::Shunt(run) if run.run.contains("--probe") => answer(self.shunt(&run.run), run),
            Step::Shunt(run) => eventually(|| answer(self.shunt(&run.run), run)),
            Step::Sh(run) => self.sh(run),
            Step::ShBecomes(run) => eventually(|| self.sh(run)),
            Step::Programs(programs) => {
                self.programs.clear();
                for (host, text) in programs {
                    let command = self.shell(Some(host), text)?;
                    self.programs.push(Program::start(command)?);
                }
                Ok(())
            }
            Step::Trace(run) => {
                let mut command = self.shunt(&format!("trace {}", run.run));
                let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
                let done = eventually(|| self.rules(&["shunt-trace".to_owned()], &[]));
                let steps = &run.steps;
                let done = done.and_then(|()| steps.iter().try_for_each(|step| self.step(step)));
                if done.is_err() {
                    child.kill()?;
                }
                let output = child.wait_with_output()?;
                done.and_then(|()| says(&output, run))
                    .and_then(|()| self.rules(&[], &["shunt-trace".to_owned()]))
            }
            Step::Http(questions) => questions.iter().try_for_each(|(to, with)| {
                let (address, path) = to.split_once('/').context("no path")?;
                let address: SocketAddr = address.parse()?;
                let from = if address.ip().is_loopback() { "node" } else { "client" };
                eventually(|| {
                    let answer = http_get(self.host(from)?, address, &format!("/{path}"));
                    let text = answer.map_or_else(
                        |_| "no answer".to_owned(),
                        |it| squeezed(&format!("{} {} {}", it.status, it.headers, it.body)),
                    );
                    contains(&text, with, &[])
                })
            }),
            Step::Nft(rules) => {
                rules.iter().try_for_each(|(host, rules)| self.host(host)?.nft(rules))
            }
            Step::Ip(commands) => self.ip(commands),
            Step::Sysctl(settings) => settings.iter().try_for_each(|(host, settings)| {
                let settings: Vec<_> = settings.iter().map(|(it, to)| (&**it, &**to)).collect();
                self.host(host)?.sysctl(&settings)
            }),
            Step::Rules(text) => self.rules(&text.with, &text.without),
            Step::RulesBecome(text) => eventually(|| self.rules(&text.with, &text.without)),
            Step::Transactions(count) => {
                let before = self.generation;
                self.generation = self.lab.node.nft_generation()?;
                let seen = self.generation - before;
                ensure!(count.is_none_or(|count| count == seen), "{seen} transactions");
                Ok(())
            }
            Step::Occupied(yes) => {
                self.occupier = yes.then(|| Occupier::enter(&self.lab.node)).transpose()?;
                Ok(())
            }
            Step::Gate(step) => {
                let (api, gate) = self.source.api()?;
                match step {
                    GateStep::Refuse => gate.refuse()?,
                    GateStep::Block => gate.block(),
                    GateStep::Abandon => gate.abandon(),
                    GateStep::Cut => gate.cut(),
                    GateStep::Reopen => gate.reopen()?,
                    GateStep::Forget => api.forget()?,
                }
                Ok(())
            }
            Step::Faults(faults) => {
                let standin = self.source.api()?.0.standin()?;
                standin.behave();
                for words in faults {
                    standin.misbehave(fault(words)?);
                }
                Ok(())
            }
            Step::Events(events) => events.iter().try_for_each(|words| {
                eventually(|| {
                    let seen = self.source.api()?.0.events()?;
                    let told = |event: &&Value| {
                        let text = squeezed(&event.to_string());
                        words.iter().all(|word| text.contains(word))
                    };
                    let count = seen.iter().filter(told).count();
                    ensure!(count == 1, "{count} Events have {words:?}: {seen:#?}");
                    Ok(())
                })
            }),
            Step::Open(flows) => flows.iter().try_for_each(|(name, to)| self.open(name, to)),
            Step::Flows(expected) => self.ask(expected, Duration::ZERO),
            Step::FlowsBecome(expected) => self.ask(expected, patience(CONVERGENCE)),
            Step::Tracked(names) => names.iter().try_for_each(|name| {
                let entries = self.entries(name)?;
                ensure!(
                    entries.iter().all(Option::is_some),
                    "{name}: no entry of some: {entries:?}"
                );
                let before = self.tracked.insert(name.clone(), entries.clone());
                ensure!(
                    before.as_ref().is_none_or(|before| *before == entries),
                    "{name}: entries were deleted and made again: {before:?}, now {entries:?}"
                );
                Ok(())
            }),
            Step::Untracked(names) => names.iter().try_for_each(|name| {
                eventually(|| {
                    let entries = self.entries(name)?;
                    ensure!(entries.iter().all(Option::is_none), "{name}: {entries:?} stay");
                    Ok(())
                })
            }),
        }
    }

    fn serve(&mut self, servers: &[String]) -> Result<()> {
        self.servers.clear();
        for server in servers {
            let (name, port) = server.split_once(':').unwrap_or((server, "8080"));
            let server = Echo::on(self.host(name)?, port.parse()?)?;
            self.servers.push(server);
        }
        Ok(())
    }

    fn filled(&self, text: &str) -> String {
        let pid = self.process.as_ref().and_then(|it| it.shunt().ok()).map_or(0, |it| it.pid());
        let text = self.lab.hosts().iter().fold(text.to_owned(), |text, host| {
            text.replace(&format!("$netns/{}", host.name), &host.path().display().to_string())
        });
        self.source.with_paths(&text.replace("$pid", &pid.to_string()))
    }

    fn shunt(&self, arguments: &str) -> Command {
        let mut command = self.lab.node.command(SHUNT);
        command.args(self.filled(arguments).split_whitespace());
        command
    }

    fn shell(&self, host: Option<&str>, text: &str) -> Result<Command> {
        let mut command = self.host(host.unwrap_or("node"))?.command("sh");
        command.args(["-c", &self.filled(text)]);
        Ok(command)
    }

    fn sh(&self, run: &Run) -> Result<()> {
        answer(self.shell(run.on.as_deref(), &run.run)?, run)
    }

    fn line(&self, words: &[String]) -> Result<String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.process()?.shunt()?.wait_for_log(&words)
    }

    fn wait_for_metrics(&self, are_so: impl Fn(&Exposition) -> bool) -> Result<()> {
        self.process()?.shunt()?.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
            are_so(&Exposition::parse(&answer.body).ok()?).then_some(())
        })
    }

    fn rules(&self, with: &[String], without: &[String]) -> Result<()> {
        contains(&self.lab.node.output("nft", &["list", "ruleset"])?, with, without)
    }

    /// The identities of the entries of open sockets in the node's connection tracking.
    fn entries(&self, name: &str) -> Result<Vec<Option<String>>> {
        let flows = self.flows.get(name).with_context(|| format!("no flows {name:?}"))?;
        let entry = |flow: &Flow| {
            let family = if flow.to.is_ipv4() { "ipv4" } else { "ipv6" };
            let protocol = flow.protocol().to_string().to_lowercase();
            let port = flow.source.port().to_string();
            let args = ["-L", "-o", "id", "-f", family, "-p", &protocol, "--orig-port-src", &port];
            let list = self.lab.node.output("conntrack", &args)?;
            let (from, to) =
                (format!("src={} ", flow.source.ip()), format!("dst={} ", flow.to.ip()));
            let line = list.lines().find(|line| line.contains(&from) && line.contains(&to));
            let id = |line: &str| {
                line.split_whitespace().find(|word| word.starts_with("id=")).map(str::to_owned)
            };
            Ok(line.and_then(id))
        };
        flows.iter().map(entry).collect()
    }

    fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("the agent is down")
    }

    fn spawn(&mut self) -> Result<()> {
        self.process = Some(self.source.spawn(self.kind, &self.lab, self.scenario)?);
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        self.spawn()?;
        match self.process()? {
            // Ready is not yet programmed.
            Process::KubeProxy(_) => self.settle(),
            Process::Shunt(agent) => agent.wait_ready(),
        }
    }

    fn end(&mut self, kill: bool) -> Result<()> {
        self.process.take().context("the agent is down")?.end(kill)
    }

    fn ip(&self, commands: &BTreeMap<String, String>) -> Result<()> {
        commands.iter().try_for_each(|(host, commands)| self.host(host)?.ip(commands))
    }

    fn apply(&mut self, objects: &[Value]) -> Result<()> {
        for object in objects {
            if let Some(name) = object.as_str() {
                self.delete(name)?;
                continue;
            }
            for object in expand(object, &self.lab.hosts())? {
                self.put(&object)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, object: &Value) -> Result<()> {
        let Key { kind, name, .. } = Key::of(object)?;
        match kind {
            shunt_fake_apiserver::Kind::Service => drop(self.services.insert(name, object.clone())),
            shunt_fake_apiserver::Kind::Node => {
                let zone = &object["metadata"]["labels"]["topology.kubernetes.io/zone"];
                self.zone = zone.as_str().map(str::to_owned);
            }
            _ => {}
        }
        self.source.put(object)
    }

    fn delete(&mut self, name: &str) -> Result<()> {
        if name.contains('/') {
            return self.source.delete(&key(name)?);
        }
        self.source.delete(&key(&format!("Service/{name}"))?)?;
        for family in ["v4", "v6"] {
            let _ = self.source.delete(&key(&format!("EndpointSlice/{name}-{family}"))?);
        }
        Ok(())
    }

    /// Waits until all that was written before this is in the kernel.
    fn settle(&mut self) -> Result<()> {
        if self.process.is_none() {
            return Ok(());
        }
        for object in self.marker.next(self.zone.as_deref()) {
            self.source.put(&object)?;
        }
        self.marker.wait(self.lab.from(&self.lab.client))
    }

    fn open(&mut self, name: &str, to: &str) -> Result<()> {
        let (mut hosts, mut addresses, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for word in to.split_whitespace() {
            match (word.parse::<SocketAddr>(), self.host(word)) {
                (Ok(address), _) => addresses.push(address),
                (_, Ok(host)) => hosts.push(host),
                _ => words.push(word),
            }
        }
        let to = if addresses.is_empty() {
            let (target, words) = match words[..] {
                ["number", number, ref words @ ..] => (format!("number {number}"), words),
                [target, ref words @ ..] => (target.to_owned(), words),
                [] => bail!("{name}: no target"),
            };
            self.frontends(&target, &Selection::parse(words.iter().copied())?)?
        } else {
            let Selection { protocols, .. } = Selection::parse(words)?;
            let of = |to: &SocketAddr| protocols.iter().map(|p| (*p, *to)).collect::<Vec<_>>();
            addresses.iter().flat_map(of).collect()
        };
        if hosts.is_empty() {
            hosts.push(&self.lab.client);
        }
        let mut flows = Vec::new();
        for host in hosts {
            for &(protocol, to) in &to {
                let source = host.ip_like(to.ip()).context("a host without address")?;
                flows.push(host.run(|| Flow::open(protocol, (source, 0), to))?);
            }
        }
        self.flows.insert(name.to_owned(), flows);
        Ok(())
    }

    /// Asks open sockets until they are answered so, and fails after `deadline`.
    fn ask(&mut self, expected: &BTreeMap<String, String>, deadline: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut wrong = Vec::new();
            for (name, outcome) in expected {
                let flows =
                    self.flows.get_mut(name).with_context(|| format!("no flows {name:?}"))?;
                let mut all: Vec<&mut Flow> = flows.iter_mut().collect();
                Flow::ask_all(&mut all, patience(ANSWER))?;
                let outcome = Expected::parse(outcome)?;
                let differs = flows.iter().filter(|flow| !answers(flow.reply.as_ref(), &outcome));
                wrong.extend(differs.map(|flow| format!("{name}, {}: {:?}", flow.to, flow.reply)));
            }
            if wrong.is_empty() {
                return Ok(());
            }
            let connections = || self.lab.node.output("conntrack", &["-L"]).unwrap_or_default();
            ensure!(
                start.elapsed() < deadline,
                "instead of {expected:?}:\n{}\n{}",
                wrong.join("\n"),
                connections()
            );
        }
    }
}

/// Repeats what may fail at first.
fn eventually(attempt: impl Fn() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        let result = attempt();
        if result.is_ok() || start.elapsed() > patience(CONVERGENCE) {
            return result;
        }
        thread::sleep(POLL);
    }
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end, which must say so.
fn answer(mut command: Command, run: &Run) -> Result<()> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // What does not read may end before.
    let _ = child.stdin.take().context("no stdin")?.write_all(run.stdin.as_bytes());
    says(&child.wait_with_output()?, run)
}

fn says(output: &Output, run: &Run) -> Result<()> {
    let text = [&*output.stdout, &output.stderr].concat();
    let text = squeezed(&String::from_utf8_lossy(&text));
    ensure!(output.status.code() == Some(run.exit), "{}:\n{text}", output.status);
    // Nothing is printed before an error.
    let starts = |it: &String| !it.starts_with("error: ") || text.starts_with(it);
    ensure!(run.with.first().is_none_or(starts), "something before the error:\n{text}");
    contains(&text, &run.with, &run.without)
}

/// What a request gets: `list EndpointSlice 403`, `Service silence`, `Node cut=700`.
fn fault(words: &str) -> Result<Fault> {
    let (requests, answer) = words.rsplit_once(' ').context("no requests and answer")?;
    let answer = match answer.split_once('=') {
        None if answer == "silence" => Answer::Silence,
        None => Answer::Status(answer.parse()?),
        Some(("cut", bytes)) => Answer::CutAfter(bytes.parse()?),
        Some((_, body)) => Answer::Body(body.into()),
    };
    requests.split(' ').try_fold(Fault::new(answer), |fault, word| {
        let kind = shunt_fake_apiserver::Kind::ALL.into_iter().find(|kind| kind.as_str() == word);
        Ok(match (kind, word) {
            (Some(kind), _) => fault.of(kind),
            (None, "list") => fault.on(Verb::List),
            (None, "watch") => fault.on(Verb::Watch),
            (None, "create") => fault.on(Verb::Create),
            (None, "once") => fault.times(1),
            _ => bail!("{word:?} is no request"),
        })
    })
}

fn contains(text: &str, with: &[String], without: &[String]) -> Result<()> {
    let missing: Vec<_> = with.iter().filter(|part| !text.contains(*part)).collect();
    let present: Vec<_> = without.iter().filter(|part| text.contains(*part)).collect();
    ensure!(
        missing.is_empty() && present.is_empty(),
        "missing {missing:?}, present {present:?}:\n{text}"
    );
    Ok(())
}

/// The value of `name` or `name{label=value,label=value}`.
fn sample(scraped: &Exposition, name: &str) -> Option<f64> {
    let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
    let labels: Vec<_> = labels.split(',').filter_map(|label| label.split_once('=')).collect();
    scraped.value(name, &labels)
}

fn answers(reply: Option<&Outcome>, expected: &Expected) -> bool {
    match expected {
        Expected::Reach(servers, _) | Expected::Stick(servers) => {
            matches!(reply, Some(Outcome::Reached { server, .. }) if servers.contains(server))
        }
        Expected::Share(_) => false,
        Expected::Refused => reply.is_some_and(Outcome::is_refused),
        Expected::Dropped => reply.is_none(),
        Expected::Unhandled | Expected::Unreachable => {
            reply.is_some_and(|reply| reply.error().is_some())
        }
    }
}
