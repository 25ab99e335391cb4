//! The objects that a command explains: those of the running agent, or of manifests.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use shunt_core::model::{Change, Dirty, ObjectName, Store};
use shunt_core::plan::{Desired, FrontendKey, FrontendKind};

use super::args::Moment;
use super::history::History;
use super::with;
use crate::agent::Failure;
use crate::agent::args::{Logging, Settings};
use crate::agent::logging;
use crate::agent::settings::{Effective, effective};
use crate::serve::query::{Excerpt, NoAnswer, Objects, Selection, ask_history, ask_objects};
use crate::serve::status::Status;
use crate::source::interfaces::interface_addresses;
use crate::source::manifests::{self, Locations};

/// Where the objects of a command come from.
pub(super) struct From<'a> {
    /// The paths of `--manifests`; empty for the running agent.
    pub(super) manifests: &'a [PathBuf],
    /// The files of `--with`: their objects as if they were applied.
    pub(super) with: &'a [PathBuf],
    /// The time of `--at`: the objects of then.
    pub(super) at: Option<Moment>,
    /// The configuration beside manifests. The agent has its own.
    pub(super) settings: &'a Settings,
    pub(super) logging: &'a Logging,
    /// Manifests are those of any node, which need not be this machine.
    pub(super) is_offline: bool,
}

impl From<'_> {
    /// Starts the log, and returns a function that reads the objects.
    pub(super) fn start(&self) -> Result<Reader, Failure> {
        if let Some(at) = self.at {
            logging::start_with(self.logging);
            let mut objects = with_history(self.manifests)?;
            rewind(&mut objects, at)?;
            return Ok(Reader::Manifests(Box::new(objects)));
        }
        if self.manifests.is_empty() {
            logging::start_with(self.logging);
            if self.with.is_empty() {
                return Ok(Reader::Agent);
            }
            let mut objects = Reader::Agent.read(&Selection::All)?;
            with::apply(self.with, &mut objects)?;
            return Ok(Reader::Manifests(Box::new(objects)));
        }
        let settings = effective(self.settings, self.logging)?;
        let locations = Locations::default();
        let mut changes = read_manifests(self.manifests, &settings.node_name, &locations)?;
        changes.extend(match self.is_offline {
            true => Some(addresses_of_node(&changes)),
            // Without permission to list them, node ports have no address.
            false => interface_addresses().ok(),
        });
        let mut objects = Objects {
            options: settings.options(),
            status: Status { node: settings.node_name, ..Status::default() },
            excerpt: Excerpt { changes, ..Excerpt::default() },
        };
        if !self.with.is_empty() {
            with::apply(self.with, &mut objects)?;
        }
        Ok(Reader::Manifests(Box::new(objects)))
    }
}

/// Returns the objects of the agent with their history, or those that `shunt history -o json` wrote.
pub(super) fn with_history(files: &[PathBuf]) -> anyhow::Result<Objects> {
    match files {
        [] => Ok(ask_history(Selection::All)?),
        [file] => {
            let json =
                std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let history: History = serde_json::from_slice(&json).with_context(|| {
                let file = file.display();
                format!("{file} is not what `shunt history -o json` of this version writes")
            })?;
            Ok(history.objects)
        }
        _ => Err(anyhow!("--at reads one file of `shunt history -o json`; give --manifests once")),
    }
}

/// Makes the objects those of an earlier time.
pub(super) fn rewind(objects: &mut Objects, Moment(at): Moment) -> anyhow::Result<()> {
    let since = objects.excerpt.since;
    anyhow::ensure!(at >= since, "the history reaches back to {since} only, --at is {at}");
    objects.rewind(at);
    Ok(())
}

/// Splits `namespace/name:port`.
pub(super) fn service_port(text: &str) -> anyhow::Result<(ObjectName, Option<&str>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    match name.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((ObjectName::new(namespace, name), port))
        }
        _ => Err(anyhow!(
            "\"{text}\" is not the name of a Service: write NAMESPACE/NAME or NAMESPACE/NAME:PORT, \
             or --to ADDRESS:PORT for a destination"
        )),
    }
}

/// Reads manifests once, and logs their problems.
pub(super) fn read_manifests(
    paths: &[PathBuf],
    node_name: &str,
    locations: &Locations,
) -> Result<Vec<Change>, Failure> {
    manifests::load(paths, node_name, locations).map_err(|error| match error {
        manifests::Error::Unusable(_) => Failure::Input(error.to_string()),
        error => Failure::Other(anyhow::Error::from(error).context("cannot read the manifests")),
    })
}

/// Plans the Services in manifests for any node.
pub(super) fn planned(
    manifests: &[PathBuf],
    settings: &Effective,
    locations: &Locations,
) -> Result<(Store, Desired), Failure> {
    let (mut store, mut dirty) = (Store::new(), Dirty::default());
    for change in read_manifests(manifests, &settings.node_name, locations)? {
        store.apply(change, &mut dirty);
    }
    let mut desired = Desired::new(settings.options(), &settings.node_name);
    desired.update(&store, &dirty);
    Ok((store, desired))
}

fn addresses_of_node(changes: &[Change]) -> Change {
    let addresses = changes.iter().filter_map(|change| match change {
        Change::Node(node) => Some(&node.addresses),
        _ => None,
    });
    Change::InterfaceAddresses(addresses.flatten().copied().collect())
}

/// Returns the address of a frontend, which a node port does not have, and its port.
pub(super) fn place(key: FrontendKey) -> (Option<IpAddr>, u16) {
    match key {
        FrontendKey::Address(address, _, port) => (Some(address), port),
        FrontendKey::NodePort(_, _, port) => (None, port),
    }
}

/// Returns the kind of a frontend in the words of Services.
pub(super) fn kind_word(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "ClusterIP",
        FrontendKind::Vip => "LoadBalancer",
        FrontendKind::ExternalIp => "ExternalIP",
        FrontendKind::NodePort => "NodePort",
    }
}

/// A reader of objects.
pub(super) enum Reader {
    /// The objects of the running agent.
    Agent,
    /// Objects that were read: those of manifests, or of the agent with those of files.
    Manifests(Box<Objects>),
}

impl Reader {
    /// Returns true if an agent answers.
    pub(super) fn is_agent(&self) -> bool {
        matches!(self, Reader::Agent)
    }

    /// Reads the selected objects. Manifests yield all of theirs.
    pub(super) fn read(&self, selection: &Selection) -> Result<Objects, Failure> {
        match self {
            Reader::Manifests(objects) => Ok((**objects).clone()),
            Reader::Agent => ask_objects(selection.clone()).map_err(|error| match error {
                NoAnswer::NoAgent => Failure::Other(anyhow::anyhow!(
                    "{error}; give --manifests to read files without an agent"
                )),
                other => Failure::Other(other.into()),
            }),
        }
    }
}
