//! The objects that a command explains: those of the running agent, or of manifests.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use shunt_core::model::{Change, Dirty, Store};
use shunt_core::plan::{Desired, FrontendKey, FrontendKind};

use super::with;
use crate::agent::Failure;
use crate::agent::args::{Logging, Settings};
use crate::agent::logging;
use crate::agent::settings::{Effective, effective};
use crate::serve::query::{Excerpt, NoAnswer, Objects, Selection, ask_objects};
use crate::serve::status::Status;
use crate::source::interfaces::interface_addresses;
use crate::source::manifests::{self, Locations};

/// Where the objects of a command come from.
pub(super) struct From<'a> {
    /// The paths of `--manifests`; empty for the running agent.
    pub(super) manifests: &'a [PathBuf],
    /// The files of `--with`: their objects as if they were applied.
    pub(super) with: &'a [PathBuf],
    /// The configuration beside manifests. The agent has its own.
    pub(super) settings: &'a Settings,
    pub(super) logging: &'a Logging,
    /// Manifests are those of any node, which need not be this machine.
    pub(super) is_offline: bool,
}

impl From<'_> {
    /// Starts the log, and returns a function that reads the objects.
    pub(super) fn start(&self) -> Result<Reader, Failure> {
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

/// Reads manifests once, and logs their problems.
pub(super) fn read_manifests(
    paths: &[PathBuf],
    node_name: &str,
    locations: &Locations,
) -> anyhow::Result<Vec<Change>> {
    manifests::load(paths, node_name, locations).context("cannot read the manifests")
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
