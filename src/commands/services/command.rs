//! `shunt services`: shows the Services of the running agent, or of manifests.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use nfnetlink::nft::Socket;
use shunt_core::model::Store;
use shunt_core::plan::{Desired, FrontendKey};

use super::{Frontend, Kernel, Picture, Selected, differing, picture, picture_of_kernel};
use crate::agent::{Failure, logging, netns};
use crate::commands::args::{Format, Services as Arguments, service_port};
use crate::commands::explain::Subject;
use crate::commands::objects::settled;
use crate::dataplane::{Verdicts, add_verdicts, verdicts};
use crate::serve::escape;
use crate::serve::query::{NoAnswer, Objects, Selection, ask};
use crate::serve::status::Problem;

pub(in crate::commands) fn services(arguments: &Arguments) -> Result<(), Failure> {
    let objects = &arguments.objects;
    logging::start_with(&objects.logging);
    let selected = selected(arguments)?;
    if objects.manifests.is_empty() && objects.settings.is_given() {
        let error = anyhow!(
            "--config and its flags need --manifests; the running agent has its own configuration"
        );
        return Err(error.into());
    }
    netns::enter(arguments.netns.as_deref())?;
    if !objects.manifests.is_empty() || !objects.with.is_empty() || objects.at.is_some() {
        return of_plan(arguments, &selected);
    }
    let mut before = None;
    let mut picture = look(&selected, &mut before)?;
    check(&picture, &selected)?;
    let mut next = Instant::now();
    loop {
        arrange(&mut picture, &selected, arguments);
        let text = written(&picture, arguments)?;
        let Some(period) = arguments.watch else {
            return Ok(crate::commands::print(&text)?);
        };
        if !show(&text, arguments.output)? {
            return Ok(());
        }
        next = (next + period).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        picture = look(&selected, &mut before)?;
    }
}

/// The objects of the agent and their plan.
struct Agent {
    objects: Objects,
    store: Store,
    desired: Desired,
}

/// Makes a picture of the agent's objects and the kernel's verdicts, or of the latter alone if there is
/// no answer: the kernel's tables outlive the agent. `before` are the verdicts of the last picture. A sync
/// may come between the objects and the kernel's state: while they differ, both are read again.
///
/// # Errors
/// If neither the agent nor the kernel tells of Services.
fn look(selected: &Selected, before: &mut Option<(Verdicts, Instant)>) -> anyhow::Result<Picture> {
    let ((agent, found), is_certain) = settled(|| -> anyhow::Result<_> {
        let agent = Agent::ask(selected);
        let found = match &agent {
            Ok(agent) => agent.verdicts(selected),
            Err(_) => all_verdicts().map(|verdicts| (verdicts, BTreeSet::new())),
        };
        let differing = found.as_ref().ok().map(|(_, differing)| differing.clone());
        Ok(((agent, found), differing.filter(|it| !it.is_empty())))
    })?;
    let mut problems = Vec::new();
    let (now, mut differing) = match found {
        Ok((verdicts, differing)) => (Some((verdicts, Instant::now())), differing),
        Err(error) => {
            let text = format!("cannot read the counters in the kernel: {error:#}");
            problems.push(Problem::new("counters-unknown", text));
            (None, BTreeSet::new())
        }
    };
    if !is_certain {
        differing.clear();
    }
    let last = std::mem::replace(before, now);
    let now = before.as_ref();
    let kernel = Kernel {
        verdicts: now.map(|(verdicts, _)| verdicts),
        before: last
            .as_ref()
            .zip(now)
            .map(|((verdicts, then), (_, now))| (verdicts, now.saturating_duration_since(*then))),
        differing,
    };
    match agent {
        Ok(agent) => {
            problems.splice(0..0, agent.objects.status.problems.clone());
            Ok(picture(agent.subject(), kernel, selected, problems))
        }
        Err(error) => {
            let has_services = kernel.verdicts.is_some_and(|verdicts| !verdicts.is_empty());
            ensure!(has_services, "{error}; --manifests shows the Services in files");
            let code = match error {
                NoAnswer::NoAgent => "no-agent",
                NoAnswer::Other(_) => "no-answer",
            };
            let problem = Problem::new(code, format!("{error}; showing what the kernel has"));
            Ok(picture_of_kernel(&kernel, selected, vec![problem]))
        }
    }
}

fn all_verdicts() -> anyhow::Result<Verdicts> {
    Ok(verdicts(&mut Socket::open()?)?)
}

fn selected(arguments: &Arguments) -> anyhow::Result<Selected> {
    let namespace = &arguments.namespace;
    let Some(whole) = &arguments.name else {
        return Ok(Selected { namespace: namespace.clone(), ..Selected::default() });
    };
    let (service, port) = service_port(whole, namespace.as_deref())?;
    if let Some(other) = namespace.as_deref().filter(|it| *it != &*service.namespace) {
        anyhow::bail!("{whole} and --namespace {other} name different namespaces; give only one");
    }
    Ok(Selected { namespace: None, service: Some(service), port: port.map(str::to_owned) })
}

/// Counts the states, drops the frontends that were not asked for, and sorts.
fn arrange(picture: &mut Picture, selected: &Selected, arguments: &Arguments) {
    for frontend in picture.services.iter().flat_map(|service| &service.frontends) {
        *picture.states.entry(frontend.state).or_default() += 1;
    }
    if arguments.problems || selected.port.is_some() {
        for service in &mut picture.services {
            let is_bad = |it: &Frontend| !arguments.problems || it.state != "ok";
            service.frontends.retain(|it| is_bad(it) && selected.has_port(it));
        }
        picture.services.retain(|service| !service.frontends.is_empty());
    }
    picture.sort(arguments.sort);
}

/// Fails for the name of a Service or of a port that does not exist.
fn check(picture: &Picture, selected: &Selected) -> anyhow::Result<()> {
    let Some(name) = &selected.service else { return Ok(()) };
    let is_found = !picture.services.is_empty() || !picture.ignored.is_empty();
    ensure!(is_found, "Service {name} not found: `shunt services` lists all");
    let mut frontends = picture.services.iter().flat_map(|service| &service.frontends);
    if let Some(port) = &selected.port {
        let has_port = frontends.any(|frontend| selected.has_port(frontend));
        ensure!(
            has_port,
            "Service {name} has no port {port}: `shunt services {name}` lists its ports"
        );
    }
    Ok(())
}

/// Shows Services of manifests, or with the objects of files: without the kernel.
fn of_plan(arguments: &Arguments, selected: &Selected) -> Result<(), Failure> {
    let (store, desired) = arguments.objects.start(true)?.read(&Selection::All)?.planned();
    let sources = Subject { store: &store, desired: &desired, agent: None };
    let mut picture = picture(sources, Kernel::default(), selected, Vec::new());
    check(&picture, selected)?;
    arrange(&mut picture, selected, arguments);
    let mut text = written(&picture, arguments)?;
    if arguments.output.is_text() {
        text.push_str("\na plan: counters and the kernel's state are unknown\n");
    }
    Ok(crate::commands::print(&text)?)
}

fn written(picture: &Picture, arguments: &Arguments) -> anyhow::Result<String> {
    let whole = || crate::commands::written(arguments.output, picture);
    match arguments.output {
        // One line for each picture.
        Format::Json if arguments.watch.is_some() => {
            Ok(serde_json::to_string(picture).context("cannot write JSON")? + "\n")
        }
        Format::Yaml if arguments.watch.is_some() => Ok("---\n".to_owned() + &whole()?),
        _ => whole(),
    }
}

/// Shows a picture of several. Returns false if the reader has closed
/// the pipe.
fn show(text: &str, output: Format) -> anyhow::Result<bool> {
    let text = escape::lines(text);
    let mut stdout = io::stdout().lock();
    let written = if output.is_text() && stdout.is_terminal() {
        // Each line at its row, without wrapping; then everything below is erased. Nothing scrolls:
        // rows below the terminal's are its last one.
        let rows = (1..).zip(text.lines());
        let lines: String = rows.map(|(row, line)| format!("\x1b[{row}H{line}\x1b[K")).collect();
        write!(stdout, "\x1b[?7l{lines}\x1b[?7h\x1b[J")
    } else {
        let end = if output.is_text() { "\n" } else { "" };
        write!(stdout, "{text}{end}")
    };
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to stdout"),
    }
}

impl Agent {
    fn ask(selected: &Selected) -> Result<Agent, NoAnswer> {
        let service = selected.service.clone();
        let selection = service.map_or(Selection::All, Selection::Service);
        let (objects, _) = ask(selection, false)?;
        let (store, desired) = objects.planned();
        Ok(Agent { objects, store, desired })
    }

    fn subject(&self) -> Subject<'_> {
        Subject { store: &self.store, desired: &self.desired, agent: Some(&self.objects) }
    }

    /// Reads the kernel's verdicts, and compares them. Those that a dump lacks are looked up.
    fn verdicts(&self, selected: &Selected) -> anyhow::Result<(Verdicts, BTreeSet<FrontendKey>)> {
        let mut socket = Socket::open()?;
        let mut found = verdicts(&mut socket)?;
        let keys: Vec<_> = differing(self.subject(), selected, &found).into_iter().collect();
        add_verdicts(&mut socket, &keys, &mut found)?;
        let differing = differing(self.subject(), selected, &found);
        Ok((found, differing))
    }
}
