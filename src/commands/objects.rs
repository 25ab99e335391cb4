//! The objects that a command explains: those of the running agent, or of manifests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use shunt_core::model::Change;
use shunt_core::plan::{FrontendKey, FrontendKind};

use super::args::ObjectArguments;
use super::history::HistoryText;
use super::with;
use crate::agent::Failure;
use crate::agent::logging;
use crate::agent::settings::effective;
use crate::config::Loaded;
use crate::serve::query::{NoAnswer, Objects, Selection, ask};
use crate::serve::status::{AgentStatus, Time};
use crate::source::interfaces::interface_addresses;
use crate::source::manifests;

/// The number of looks until two of them agree, and the pause between them.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// A reader of objects: read already, or asked of the running agent.
pub(super) struct ObjectReader(Option<Box<Objects>>);

impl ObjectArguments {
    /// Starts the log, and returns a reader of the objects. `is_offline` adds those of `--with`, and
    /// takes manifests for those of any node, which need not be this machine.
    pub(super) fn start(&self, is_offline: bool) -> Result<ObjectReader, Failure> {
        logging::start_with(&self.logging);
        if let Some(at) = self.at.filter(|_| is_offline) {
            let mut objects = self.with_history()?;
            rewind(&mut objects, at)?;
            return Ok(ObjectReader(Some(Box::new(objects))));
        }
        let has_files = is_offline && !self.with.is_empty();
        let mut objects = if self.manifests.is_empty() {
            if !has_files {
                return Ok(ObjectReader(None));
            }
            ObjectReader(None).read(&Selection::All)?
        } else {
            let settings = effective(&self.settings, &self.logging)?;
            let mut objects = of_manifests(&self.manifests, &settings)?;
            let changes = &mut objects.changes;
            changes.extend(match is_offline {
                true => Some(addresses_of_node(changes)),
                // Without permission to list them, node ports have no address.
                false => interface_addresses().ok(),
            });
            objects
        };
        if has_files {
            with::apply(&self.with, &mut objects)?;
        }
        Ok(ObjectReader(Some(Box::new(objects))))
    }

    /// Returns the objects of the agent with their history, or those that `shunt history -o json`
    /// wrote.
    pub(super) fn with_history(&self) -> anyhow::Result<Objects> {
        let file = match &self.manifests[..] {
            [] => return Ok(ask(Selection::All, true)?.0),
            [file] => file,
            _ => anyhow::bail!(
                "--at needs exactly one --manifests, a file that `shunt history -o json` wrote"
            ),
        };
        let name = file.display();
        let json = std::fs::read(file).with_context(|| format!("cannot read {name}"))?;
        let history: HistoryText = serde_json::from_slice(&json).with_context(|| {
            format!("{name} is not a file that `shunt history -o json` of this version wrote")
        })?;
        Ok(history.objects)
    }
}

/// Makes the objects those of an earlier time.
pub(super) fn rewind(objects: &mut Objects, at: Time) -> anyhow::Result<()> {
    let since = objects.since;
    anyhow::ensure!(at >= since, "the history begins at {since}, after --at {at}");
    objects.rewind(at);
    Ok(())
}

/// Reads manifests once, and logs their problems.
pub(super) fn read_manifests(paths: &[PathBuf], node_name: &str) -> Result<Vec<Change>, Failure> {
    manifests::load(paths, node_name).map_err(|error| match error {
        manifests::Error::Unusable(_) => Failure::Input(error.to_string()),
        error => Failure::Other(anyhow::Error::from(error).context("cannot read the manifests")),
    })
}

/// Returns the objects in manifests, to be planned for any node.
pub(super) fn of_manifests(paths: &[PathBuf], settings: &Loaded) -> Result<Objects, Failure> {
    let node = settings.config.node_name.clone();
    let changes = read_manifests(paths, &node)?;
    Ok(Objects {
        options: settings.config.options.clone(),
        status: AgentStatus { node, ..AgentStatus::default() },
        changes,
        ..Objects::default()
    })
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

impl ObjectReader {
    /// Returns true if an agent answers.
    pub(super) fn is_agent(&self) -> bool {
        self.0.is_none()
    }

    /// Reads the selected objects. Manifests yield all of theirs.
    pub(super) fn read(&self, selection: &Selection) -> anyhow::Result<Objects> {
        if let Some(objects) = &self.0 {
            return Ok((**objects).clone());
        }
        match ask(selection.clone(), false) {
            Ok((objects, _)) => Ok(objects),
            Err(error @ NoAnswer::NoAgent) => {
                anyhow::bail!("{error}; give --manifests to read files without an agent")
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Looks at the plan and at the kernel until they agree, or differ in the same way twice: the agent may
/// commit between the readings of both, and a listing during the resize of a large set lacks elements.
/// Returns the last look, and false if they keep changing.
pub(super) fn settled<T, D: PartialEq, E>(
    mut look: impl FnMut() -> Result<(T, Option<D>), E>,
) -> Result<(T, bool), E> {
    let (mut found, mut difference) = look()?;
    for _ in 1..ATTEMPTS {
        if difference.is_none() {
            return Ok((found, true));
        }
        std::thread::sleep(PAUSE);
        let before = difference;
        (found, difference) = look()?;
        if difference == before {
            return Ok((found, true));
        }
    }
    Ok((found, difference.is_none()))
}
