//! `shunt check`: whether this node and its cluster fit, before shunt runs here.

use std::path::PathBuf;

use nfnetlink::route::links;
use shunt_core::model::{Change, Dirty, Store};
use shunt_core::plan::NodeContext;

use super::api::{Api, ApiAnswers};
use super::{CheckOutcome, CheckReport, NodeFacts, others};
use crate::agent::args::Run;
use crate::agent::settings::load_file;
use crate::agent::sources::{access, runtime};
use crate::agent::{Failure, logging, netns};
use crate::commands::PROBLEMS;
use crate::commands::args::Format;
use crate::commands::objects::read_manifests;
use crate::commands::run::print_version;
use crate::config::Loaded;
use crate::serve::query::{Selection, ask};
use crate::source::interfaces::interface_addresses;
use crate::source::kubernetes::{AccessError, Dialer, inspect};

/// The ClusterIP of the API server in every Pod, which the kubelet sets.
const CLUSTER_IP_VARIABLE: &str = "KUBERNETES_PORT_443_TCP_ADDR";

/// Checks this node and prints the lines. Fails if one of them is a failure.
pub(in crate::commands) fn check(run: &Run, format: Format) -> Result<(), Failure> {
    if let Some(done) = print_version(run) {
        return done;
    }
    logging::start_with(&run.logging);
    let (mut effective, problems) = match load_file(&run.settings, &run.logging) {
        Ok(mut loaded) => {
            let problems = std::mem::take(&mut loaded.problems);
            (Ok(loaded), problems)
        }
        Err(problems) => (Err("the configuration is invalid".to_owned()), problems),
    };
    let dialer = netns::enter_with_dialer(run.netns.as_deref())?;
    // Without settings of its own, the command judges those of the running agent.
    let running = match run.settings.is_given() {
        true => None,
        false => ask(Selection::All, false).ok().map(|(objects, _)| objects),
    };
    if let (Ok(effective), Some(running)) = (&mut effective, &running) {
        effective.config.node_name.clone_from(&running.status.node);
    }
    let (api, objects) = match &effective {
        Err(why) => (Api::NotAsked(why.clone()), Vec::new()),
        Ok(effective) => objects(&run.manifests, effective, dialer)?,
    };
    let own = || effective.as_ref().ok().map(|effective| effective.config.options.clone());
    let options = running.map(|running| running.options).or_else(own).unwrap_or_default();
    let addresses = interface_addresses();
    let mut store = Store::new();
    for change in objects.into_iter().chain(addresses.as_ref().ok().cloned()) {
        store.apply(change, &mut Dirty::default());
    }
    let node_name = effective.as_ref().map_or("", |effective| &effective.config.node_name);
    let report = CheckReport::of(&NodeFacts {
        run,
        problems,
        api,
        node_context: NodeContext::of(&store, &options, node_name),
        effective,
        store,
        addresses: addresses.map(|_| ()).map_err(|it| format!("the addresses are unknown: {it}")),
        links: links().map_err(|error| format!("cannot list interfaces: {error}")),
        kube_proxy: others::find_kube_proxy(),
        agent: others::find_agent(),
    });
    crate::commands::output(format, &report)?;
    if report.count(CheckOutcome::Fail) > 0 { Err(Failure::Result(PROBLEMS)) } else { Ok(()) }
}

/// Returns what the API server says, and the objects that concern the node.
fn objects(
    manifests: &[PathBuf],
    effective: &Loaded,
    dialer: Option<Dialer>,
) -> Result<(Api, Vec<Change>), Failure> {
    if !manifests.is_empty() {
        let changes = read_manifests(manifests, &effective.config.node_name)?;
        return Ok((Api::NotAsked("objects come from --manifests".to_owned()), changes));
    }
    let access = access(&effective.config, dialer);
    let (server, host) = match access.server().and_then(|server| Ok((server, access.host()?))) {
        Ok(found) => found,
        Err(AccessError::InCluster(_)) => {
            let why = "not asked: give --kubeconfig, or run in a Pod with a service account";
            return Ok((Api::NotAsked(why.to_owned()), Vec::new()));
        }
        Err(error) => return Ok((Api::Unusable(error.to_string()), Vec::new())),
    };
    let runtime = runtime()?;
    let inspection = runtime.block_on(inspect(access, &effective.config.node_name));
    // Does not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    Ok(match inspection {
        Err(error) => (Api::Unusable(error.to_string()), Vec::new()),
        Ok(mut inspection) => {
            let objects = std::mem::take(&mut inspection.changes);
            let pod_variable = std::env::var(CLUSTER_IP_VARIABLE).ok();
            (Api::Asked(ApiAnswers { server, host, pod_variable, inspection }), objects)
        }
    })
}
