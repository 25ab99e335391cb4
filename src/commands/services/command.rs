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
    if !arguments.manifests.is_empty() || !arguments.with.is_empty() || arguments.at.is_some() {
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
        view.refresh();
    }
}

/// What pictures are made of: the kernel's tables, which outlive the agent, and its objects while it
/// runs.
struct View<'a> {
    selected: &'a Selected,
    wants_connections: bool,
    socket: Result<Socket, String>,
    agent: Option<Agent>,
    /// The verdicts of the last picture.
    before: Option<(Verdicts, Instant)>,
}

impl<'a> View<'a> {
    /// Fails without an agent, if the kernel has no Service of shunt.
    fn start(arguments: &Arguments, selected: &'a Selected) -> anyhow::Result<View<'a>> {
        let agent = match Agent::start(selected) {
            Err(NoAnswer::NoAgent) => None,
            agent => Some(agent?),
        };
        let mut view = View {
            selected,
            wants_connections: arguments.connections,
            socket: Socket::open().map_err(|error| error.to_string()),
            agent,
            before: None,
        };
        if view.agent.is_none() {
            let found = all_verdicts(&mut view.socket);
            let found = found.map_err(|error| {
                anyhow!("no shunt runs, and the kernel cannot be read: {error}")
            })?;
            let none = NoAnswer::NoAgent;
            anyhow::ensure!(!found.is_empty(), "{none}; --manifests shows the Services in files");
        }
        Ok(view)
    }

    /// Asks the agent again, as soon as there is one.
    fn refresh(&mut self) {
        match &mut self.agent {
            Some(agent) => agent.refresh(),
            None => self.agent = Agent::start(self.selected).ok(),
        }
    }

    fn picture(&mut self) -> Picture {
        let Some(agent) = &mut self.agent else { return self.picture_of_kernel() };
        let mut problems = Vec::new();
        let (found, differing) = agent.verdicts(&mut self.socket, self.selected, &mut problems);
        let connections = match self.wants_connections.then(|| agent.connections(self.selected)) {
            None => None,
            Some(Ok(connections)) => Some(connections),
            Some(Err(error)) => {
                problems.push(format!("cannot read connection tracking: {error}"));
                None
            }
        };
        let mut status = agent.objects.status.clone();
        status.judge();
        problems.splice(0..0, agent.silence.clone().into_iter().chain(status.problems));
        let before = self.before.take();
        let kernel = Kernel {
            verdicts: found.as_ref().map(|(verdicts, _)| verdicts),
            before: since(&before, found.as_ref().map(|(_, now)| *now)),
            differing: differing.as_ref(),
            connections: connections.as_ref(),
        };
        let picture = picture(agent.sources(), kernel, self.selected, problems);
        self.before = found;
        picture
    }

    fn picture_of_kernel(&mut self) -> Picture {
        let mut problems = vec![format!("{}; this is what the kernel has", NoAnswer::NoAgent)];
        let (now, before) = match all_verdicts(&mut self.socket) {
            Ok(found) => ((found, Instant::now()), self.before.take()),
            Err(error) => {
                problems.push(format!("cannot read the kernel: {error}"));
                let last = self.before.take();
                (last.unwrap_or_else(|| (Verdicts::default(), Instant::now())), None)
            }
        };
        let picture =
            picture_of_kernel(&now.0, since(&before, Some(now.1)), self.selected, problems);
        self.before = Some(now);
        picture
    }
}

fn all_verdicts(socket: &mut Result<Socket, String>) -> Result<Verdicts, String> {
    let socket = socket.as_mut().map_err(|error| error.clone())?;
    verdicts(socket).map_err(|error| error.to_string())
}

/// Returns the verdicts of the last picture, with the time since then.
fn since(
    before: &Option<(Verdicts, Instant)>,
    now: Option<Instant>,
) -> Option<(&Verdicts, Duration)> {
    let (verdicts, then) = before.as_ref()?;
    Some((verdicts, now?.saturating_duration_since(*then)))
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
    let Arguments { manifests, with, at, settings, logging, .. } = arguments;
    let reader = From { manifests, with, at: *at, settings, logging, is_offline: true }.start()?;
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

/// The objects of the agent and their plan.
struct Agent {
    selection: Selection,
    objects: Objects,
    store: Store,
    desired: Desired,
    /// Why the objects may be old.
    silence: Option<String>,
    /// True if the objects were those of the agent when the picture began.
    is_current: bool,
    /// When the agent was last asked, and how long the answers for the last picture took.
    asked: (Instant, Duration),
}

impl Agent {
    fn start(selected: &Selected) -> Result<Agent, NoAnswer> {
        let selection = match selected {
            Selected::Service(name) => Selection::Service(name.clone()),
            Selected::All | Selected::Namespace(_) => Selection::All,
        };
        let start = Instant::now();
        let objects = ask_objects(selection.clone())?;
        let asked = (start, start.elapsed());
        let (store, desired) = objects.planned();
        Ok(Agent { selection, objects, store, desired, silence: None, is_current: true, asked })
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

    /// Reads the kernel's verdicts, and returns the frontends whose verdicts differ from the plan, unless
    /// the objects may be old. A sync may come between the objects and the kernel's state: then both
    /// are read again.
    fn verdicts(
        &mut self,
        socket: &mut Result<Socket, String>,
        selected: &Selected,
        problems: &mut Vec<String>,
    ) -> (Option<(Verdicts, Instant)>, Option<BTreeSet<FrontendKey>>) {
        let mut found = None;
        let mut differing: Option<BTreeSet<FrontendKey>> = None;
        for attempt in 1..=ATTEMPTS {
            let verdicts = match self.read(socket, selected) {
                Ok(verdicts) => verdicts,
                Err(error) => {
                    problems.push(format!("cannot read the counters in the kernel: {error}"));
                    break;
                }
            };
            let now = differing_now(self.sources(), selected, &verdicts);
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
        (found, differing.filter(|_| self.is_current))
    }

    /// Reads the kernel's verdicts. Those that a dump lacks are looked up.
    fn read(
        &self,
        socket: &mut Result<Socket, String>,
        selected: &Selected,
    ) -> Result<Verdicts, String> {
        let mut found = match selected {
            Selected::Service(_) => Verdicts::default(),
            _ => all_verdicts(socket)?,
        };
        let keys = differing_now(self.sources(), selected, &found);
        let keys: Vec<FrontendKey> = keys.into_iter().collect();
        let socket = socket.as_mut().map_err(|error| error.clone())?;
        add_verdicts(socket, &keys, &mut found).map_err(|error| error.to_string())?;
        Ok(found)
    }

    fn connections(&self, selected: &Selected) -> Result<TrackedConnections, String> {
        let Selected::Service(name) = selected else {
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
