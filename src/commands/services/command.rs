//! `shunt services`: shows the Services of the running agent, or of manifests.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nfnetlink::conntrack::Conntrack;
use nfnetlink::nft::Socket;
use shunt_core::model::{Family, ObjectName, Store};
use shunt_core::plan::{Desired, FrontendKey};

use super::{
    Columns, Kernel, Picture, Selected, Sources, TrackedConnections, differing as differing_now,
    picture, picture_of_kernel,
};
use crate::agent::{Failure, logging, netns};
use crate::commands::args::{Services as Arguments, ServicesOutput};
use crate::commands::objects::From;
use crate::dataplane::{Verdicts, add_verdicts, verdicts};
use crate::serve::escape;
use crate::serve::presence::Peer;
use crate::serve::query::Selection;
use crate::serve::query::{NoAnswer, Objects, Refresh, ask_objects, ask_refresh};

/// The number of pictures until the objects and the kernel agree: a sync may come between the two.
const ATTEMPTS: usize = 3;

/// The pause before another attempt. The agent notes a sync after the commit.
const PAUSE: Duration = Duration::from_millis(20);

/// While objects change all the time, `--watch` reads them again after this many times the time
/// that the last reading took. So the agent spends little time on answers.
const REST: u32 = 20;

pub(in crate::commands) fn services(arguments: &Arguments) -> Result<(), Failure> {
    logging::start_with(&arguments.logging);
    let selected = selected(arguments)?;
    if arguments.manifests.is_empty() && arguments.settings.is_given() {
        let error =
            anyhow!("--config and its flags need --manifests; the running agent has its own");
        return Err(error.into());
    }
    netns::enter(arguments.netns.as_deref())?;
    if !arguments.manifests.is_empty() || !arguments.with.is_empty() {
        return of_plan(arguments, &selected);
    }
    let mut view = View::start(arguments, &selected)?;
    let mut next = Instant::now();
    let mut form = if arguments.watch.is_some() { Form::First } else { Form::Only };
    loop {
        let mut picture = view.picture();
        picture.sort(arguments.sort);
        if form != Form::Later {
            check(&picture, &selected)?;
        }
        let text = written(&picture, arguments, form)?;
        let Some(period) = arguments.watch else {
            return Ok(crate::commands::print(&text)?);
        };
        if !show(&text, arguments.output)? {
            return Ok(());
        }
        form = Form::Later;
        next = (next + period).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        view.refresh(arguments, &selected);
    }
}

/// Where pictures come from.
enum View {
    /// The agent's objects and the kernel.
    Agent(Box<Watcher>),
    /// The kernel's tables, which outlive the agent.
    Kernel(Box<Leftovers>),
}

impl View {
    fn start(arguments: &Arguments, selected: &Selected) -> anyhow::Result<View> {
        match Watcher::start(arguments, selected.clone()) {
            Ok(watcher) => Ok(View::Agent(Box::new(watcher))),
            Err(NoAnswer::NoAgent) => match Leftovers::start(selected.clone())? {
                Some(leftovers) => Ok(View::Kernel(Box::new(leftovers))),
                None => {
                    Err(anyhow!("{}; --manifests shows the Services in files", NoAnswer::NoAgent))
                }
            },
            Err(error) => Err(error.into()),
        }
    }

    fn picture(&mut self) -> Picture {
        match self {
            View::Agent(watcher) => watcher.picture(),
            View::Kernel(leftovers) => leftovers.picture(),
        }
    }

    /// Reads again, and from an agent as soon as there is one.
    fn refresh(&mut self, arguments: &Arguments, selected: &Selected) {
        match self {
            View::Agent(watcher) => watcher.refresh(),
            View::Kernel(leftovers) => match Watcher::start(arguments, selected.clone()) {
                Ok(watcher) => *self = View::Agent(Box::new(watcher)),
                Err(_) => leftovers.read_again(),
            },
        }
    }
}

/// What is in the kernel without an agent.
struct Leftovers {
    selected: Selected,
    socket: Socket,
    now: (Verdicts, Instant),
    before: Option<(Verdicts, Instant)>,
    problem: Option<String>,
}

impl Leftovers {
    /// Returns `None` if the kernel has no Service of shunt.
    fn start(selected: Selected) -> anyhow::Result<Option<Leftovers>> {
        let read = || -> Result<_, nfnetlink::nft::Error> {
            let mut socket = Socket::open()?;
            let found = verdicts(&mut socket)?;
            Ok((socket, found))
        };
        let (socket, found) = read().context("no shunt runs, and the kernel cannot be read")?;
        let (now, before, problem) = ((found, Instant::now()), None, None);
        let is_empty = now.0.is_empty();
        Ok((!is_empty).then_some(Leftovers { selected, socket, now, before, problem }))
    }

    fn read_again(&mut self) {
        match verdicts(&mut self.socket) {
            Ok(found) => {
                self.before = Some(std::mem::replace(&mut self.now, (found, Instant::now())));
                self.problem = None;
            }
            Err(error) => self.problem = Some(format!("cannot read the kernel: {error}")),
        }
    }

    fn picture(&self) -> Picture {
        let (found, now) = &self.now;
        let before = self.before.as_ref();
        let before = before.map(|(found, then)| (found, now.saturating_duration_since(*then)));
        let without = format!("{}; this is what the kernel has", NoAnswer::NoAgent);
        let problems = [without].into_iter().chain(self.problem.clone()).collect();
        picture_of_kernel(found, before, &self.selected, problems)
    }
}

fn selected(arguments: &Arguments) -> anyhow::Result<Selected> {
    let Some(whole) = &arguments.name else {
        return Ok(match &arguments.namespace {
            Some(namespace) => Selected::Namespace(namespace.clone()),
            None => Selected::All,
        });
    };
    let (namespace, name) = match (whole.split_once('/'), &arguments.namespace) {
        (Some((namespace, name)), None) => (namespace, name),
        (Some((namespace, name)), Some(other)) if namespace == other => (namespace, name),
        (Some(_), Some(other)) => {
            anyhow::bail!(
                "{whole} is not in the namespace {other} of --namespace; give one of both"
            )
        }
        (None, namespace) => (namespace.as_deref().unwrap_or("default"), whole.as_str()),
    };
    Ok(Selected::Service(ObjectName::new(namespace, name)))
}

/// Fails for the name of a Service that does not exist.
fn check(picture: &Picture, selected: &Selected) -> anyhow::Result<()> {
    if let Selected::Service(name) = selected
        && picture.services.is_empty()
        && picture.ignored.is_empty()
    {
        anyhow::bail!("there is no Service {name}; `shunt services` lists all");
    }
    Ok(())
}

/// Shows Services of manifests, or with the objects of files: without the kernel.
fn of_plan(arguments: &Arguments, selected: &Selected) -> Result<(), Failure> {
    let Arguments { manifests, with, settings, logging, .. } = arguments;
    let reader = From { manifests, with, settings, logging, is_offline: true }.start()?;
    let (store, desired) = reader.read(&Selection::All)?.planned();
    let sources = Sources { store: &store, desired: &desired, agent: None, last_changes: &[] };
    let mut picture = picture(sources, Kernel::default(), selected, Vec::new());
    picture.sort(arguments.sort);
    check(&picture, selected)?;
    let mut text = written(&picture, arguments, Form::Only)?;
    if matches!(arguments.output, ServicesOutput::Text | ServicesOutput::Wide) {
        text.push_str("\na plan: counters and the kernel's state are unknown\n");
    }
    Ok(crate::commands::print(&text)?)
}

/// The place of a picture in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The only one.
    Only,
    /// The first of several.
    First,
    /// One with another before it.
    Later,
}

fn written(picture: &Picture, arguments: &Arguments, form: Form) -> anyhow::Result<String> {
    let detailed = arguments.name.is_some();
    Ok(match arguments.output {
        ServicesOutput::Text | ServicesOutput::Wide => {
            let wide = arguments.output == ServicesOutput::Wide;
            picture.text(Columns { wide, rate: form != Form::Only }, detailed)
        }
        // One line for each picture.
        ServicesOutput::Json if form != Form::Only => {
            serde_json::to_string(picture).context("cannot write the Services as JSON")? + "\n"
        }
        ServicesOutput::Json => crate::commands::json(picture)?,
        ServicesOutput::Yaml => {
            let yaml = serde_saphyr::to_string(picture);
            let yaml = yaml.context("cannot write the Services as YAML")?;
            let mark = if form == Form::Later { "---\n" } else { "" };
            format!("{mark}{}\n", yaml.trim_end())
        }
    })
}

/// Shows a picture of several. Returns false if the reader has closed
/// the pipe.
fn show(text: &str, output: ServicesOutput) -> anyhow::Result<bool> {
    let text = escape::lines(text);
    let mut stdout = io::stdout().lock();
    let is_table = matches!(output, ServicesOutput::Text | ServicesOutput::Wide);
    let written = if is_table && stdout.is_terminal() {
        // Each line at its row, without wrapping; then everything below is erased. Nothing scrolls:
        // rows below the terminal's are its last one.
        let rows = (1..).zip(text.lines());
        let lines: String = rows.map(|(row, line)| format!("\x1b[{row}H{line}\x1b[K")).collect();
        write!(stdout, "\x1b[?7l{lines}\x1b[?7h\x1b[J")
    } else {
        let end = if is_table { "\n" } else { "" };
        write!(stdout, "{text}{end}")
    };
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to stdout"),
    }
}

/// The objects, their plan, and the last state of the kernel.
struct Watcher {
    selected: Selected,
    selection: Selection,
    wants_connections: bool,
    objects: Objects,
    store: Store,
    desired: Desired,
    /// Why the objects may be old.
    silence: Option<String>,
    /// True if the objects were those of the agent when the picture began.
    is_current: bool,
    /// When the agent was last asked, and how long the answers for the last picture took.
    asked: (Instant, Duration),
    socket: Result<Socket, String>,
    before: Option<(Verdicts, Instant)>,
}

impl Watcher {
    fn start(arguments: &Arguments, selected: Selected) -> Result<Watcher, NoAnswer> {
        let selection = match &selected {
            Selected::Service(name) => Selection::Service(name.clone()),
            Selected::All | Selected::Namespace(_) => Selection::All,
        };
        let start = Instant::now();
        let objects = ask_objects(selection.clone())?;
        let asked = (start, start.elapsed());
        let (store, desired) = objects.planned();
        Ok(Watcher {
            selected,
            selection,
            wants_connections: arguments.connections,
            objects,
            store,
            desired,
            silence: None,
            is_current: true,
            asked,
            socket: Socket::open().map_err(|error| error.to_string()),
            before: None,
        })
    }

    /// Asks the agent for changed objects, unless the last answers were too short ago for their
    /// size. Without an answer, the objects stay.
    fn refresh(&mut self) {
        let (when, took) = self.asked;
        self.is_current = when.elapsed() >= took * REST;
        if self.is_current {
            self.asked.1 = Duration::ZERO;
            self.ask_again();
        }
    }

    fn ask_again(&mut self) {
        let start = Instant::now();
        let changed = self.changed();
        self.asked = (start, self.asked.1 + start.elapsed());
        match changed {
            Ok(differs) => {
                self.silence = None;
                if differs {
                    (self.store, self.desired) = self.objects.planned();
                }
            }
            Err(error) => {
                self.is_current = false;
                let reason = match error {
                    // It has answered before: it ends at this moment.
                    NoAnswer::Closed(process) => {
                        format!("shunt ({}) closed the connection", Peer::name(process))
                    }
                    error => error.to_string(),
                };
                self.silence = Some(format!("{reason}; the objects are old"));
            }
        }
    }

    fn changed(&mut self) -> Result<bool, NoAnswer> {
        let refresh: Refresh = ask_refresh(self.selection.clone(), self.objects.excerpt.revision)?;
        match self.objects.refresh(refresh) {
            Some(differs) => Ok(differs),
            None => {
                self.objects = ask_objects(self.selection.clone())?;
                Ok(true)
            }
        }
    }

    fn sources(&self) -> Sources<'_> {
        let Objects { status, excerpt, .. } = &self.objects;
        Sources {
            store: &self.store,
            desired: &self.desired,
            agent: Some((status, excerpt.revision)),
            last_changes: &excerpt.last_changes,
        }
    }

    /// Takes a picture. If verdicts in the kernel differ from the plan, a sync may have come between
    /// the objects and the kernel's state: both are read again.
    fn picture(&mut self) -> Picture {
        let mut problems = Vec::new();
        let mut found = None;
        let mut differing: Option<BTreeSet<FrontendKey>> = None;
        for attempt in 1..=ATTEMPTS {
            let verdicts = match self.verdicts() {
                Ok(verdicts) => verdicts,
                Err(error) => {
                    problems.push(format!("cannot read the counters in the kernel: {error}"));
                    break;
                }
            };
            let now = differing_now(self.sources(), &self.selected, &verdicts);
            found = Some((verdicts, Instant::now()));
            let keys: BTreeSet<FrontendKey> = match &differing {
                Some(before) => before.intersection(&now).copied().collect(),
                None => now,
            };
            let agree = keys.is_empty();
            differing = Some(keys);
            if agree || !self.is_current || attempt == ATTEMPTS {
                break;
            }
            thread::sleep(PAUSE);
            self.ask_again();
        }
        // The objects may be old.
        let differing = differing.filter(|_| self.is_current);
        let connections = match self.wants_connections.then(|| self.connections()) {
            None => None,
            Some(Ok(connections)) => Some(connections),
            Some(Err(error)) => {
                problems.push(format!("cannot read connection tracking: {error}"));
                None
            }
        };
        let mut status = self.objects.status.clone();
        status.judge();
        problems.splice(0..0, self.silence.clone().into_iter().chain(status.problems));
        let before = self.before.take();
        let before = before
            .as_ref()
            .zip(found.as_ref())
            .map(|((verdicts, then), (_, now))| (verdicts, now.saturating_duration_since(*then)));
        let kernel = Kernel {
            verdicts: found.as_ref().map(|(verdicts, _)| verdicts),
            before,
            differing: differing.as_ref(),
            connections: connections.as_ref(),
        };
        let picture = picture(self.sources(), kernel, &self.selected, problems);
        self.before = found;
        picture
    }

    /// Reads the kernel's verdicts. Those that a dump lacks are looked up.
    fn verdicts(&mut self) -> Result<Verdicts, String> {
        let sources =
            Sources { store: &self.store, desired: &self.desired, agent: None, last_changes: &[] };
        let text = |error: nfnetlink::nft::Error| error.to_string();
        let socket = self.socket.as_mut().map_err(|error| error.clone())?;
        let mut found = match &self.selected {
            Selected::Service(_) => Verdicts::default(),
            _ => verdicts(socket).map_err(text)?,
        };
        let keys = differing_now(sources, &self.selected, &found);
        let keys: Vec<FrontendKey> = keys.into_iter().collect();
        add_verdicts(socket, &keys, &mut found).map_err(text)?;
        Ok(found)
    }

    fn connections(&self) -> Result<TrackedConnections, String> {
        let Selected::Service(name) = &self.selected else {
            return Ok(TrackedConnections::default());
        };
        let owned = |key: &FrontendKey| self.desired.service_of(*key) == Some(name);
        let keys: BTreeSet<FrontendKey> = self.desired.claimed_by(name).filter(owned).collect();
        let context = self.desired.node_context();
        let is_node = |address: IpAddr| {
            context.is_some_and(|context| match context.node_port_addresses(Family::of(address)) {
                Some(addresses) => addresses.contains(&address),
                None => context.interface_addresses.contains(&address),
            })
        };
        let mut conntrack = Conntrack::open().map_err(|error| error.to_string())?;
        TrackedConnections::read(&mut conntrack, &keys, is_node).map_err(|error| error.to_string())
    }
}
