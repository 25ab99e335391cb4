//! `shunt check`: whether this node and its cluster fit, before shunt runs here.

use shunt_core::model::Change;
use shunt_core::plan::Options;

use super::{Api, check as run_checks};
use crate::agent::settings::{Effective, load_file};
use crate::agent::sources::{access, runtime};
use crate::agent::{Failure, logging, netns};
use crate::commands::PROBLEMS;
use crate::commands::args::Check;
use crate::commands::objects::read_manifests;
use crate::commands::run::print_version;
use crate::serve::query::Selection;
use crate::serve::query::ask_objects;
use crate::source::kubernetes::{AccessError, Dialer, inspect};
use crate::source::manifests::Locations;

/// The ClusterIP of the API server in every Pod, which the kubelet sets.
const CLUSTER_IP_VARIABLE: &str = "KUBERNETES_PORT_443_TCP_ADDR";

/// Checks this node and prints the lines. Fails if one of them is a failure.
pub(in crate::commands) fn check(arguments: &Check) -> Result<(), Failure> {
    let run = &arguments.run;
    if let Some(done) = print_version(run) {
        return done;
    }
    logging::start_with(&run.logging);
    let (mut effective, problems) = match load_file(&run.settings, &run.logging) {
        Ok((effective, problems)) => (Some(effective), problems),
        Err(problems) => (None, problems),
    };
    let dialer = netns::enter_with_dialer(run.netns.as_deref())?;
    // Without settings of its own, the command judges those of the running agent.
    let running = match run.settings.is_given() {
        true => None,
        false => ask_objects(Selection::All).ok(),
    };
    if let (Some(effective), Some(running)) = (&mut effective, &running) {
        effective.node_name.clone_from(&running.status.node);
    }
    let (api, objects) = match &effective {
        None => (Api::NotAsked("the configuration is invalid".to_owned()), Vec::new()),
        Some(effective) => objects(arguments, effective, dialer)?,
    };
    let options = match (running, &effective) {
        (Some(running), _) => running.options,
        (None, Some(effective)) => effective.config.options.clone(),
        (None, None) => Options::default(),
    };
    let report = run_checks(run, effective.as_ref(), &options, &problems, &api, objects);
    crate::commands::output(arguments.output, &report)?;
    if report.has_failures() { Err(Failure::Result(PROBLEMS)) } else { Ok(()) }
}

/// Returns what the API server says, and the objects that concern the node.
fn objects(
    arguments: &Check,
    effective: &Effective,
    dialer: Option<Dialer>,
) -> Result<(Api, Vec<Change>), Failure> {
    let manifests = &arguments.run.manifests;
    if !manifests.is_empty() {
        let changes = read_manifests(manifests, &effective.node_name, &Locations::default())?;
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
    let inspection = runtime.block_on(inspect(access, &effective.node_name));
    // Does not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    Ok(match inspection {
        Err(error) => (Api::Unusable(error.to_string()), Vec::new()),
        Ok(mut inspection) => {
            let objects = std::mem::take(&mut inspection.changes);
            let pod_variable = std::env::var(CLUSTER_IP_VARIABLE).ok();
            (Api::Asked { server, host, pod_variable, inspection }, objects)
        }
    })
}
