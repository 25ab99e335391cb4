//! `shunt render`: the planned ruleset as text, without a kernel.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Context;
use shunt_core::model::{Dirty, Store};
use shunt_core::plan::{Desired, FrontendKey, Outcome, render as text};

use super::Failure;
use super::args::{Output, Render};
use super::observe::{report_conflict, report_oversized};
use super::settings::effective;
use crate::dataplane::SpecConflict;
use crate::source::manifests::{self, Locations};

pub(super) fn render(arguments: &Render) -> Result<(), Failure> {
    let settings = effective(&arguments.settings, &arguments.logging)?;
    let locations = Locations::default();
    let round = manifests::load(&arguments.manifests, &settings.node_name, &locations)
        .context("cannot read the manifests")?;
    round.problems.iter().for_each(|problem| problem.log());
    let mut store = Store::new();
    let mut dirty = Dirty::default();
    for change in round.changes {
        store.apply(change, &mut dirty);
    }
    let mut desired = Desired::new(settings.options(), &settings.node_name);
    desired.update(&store, &dirty);
    for conflict in desired.conflicts() {
        report_conflict(&SpecConflict::new(conflict, &store), &locations);
    }
    desired.oversized().iter().for_each(report_oversized);
    let output = match arguments.output {
        Output::Nft => text(&desired),
        Output::Json => json(&desired),
    };
    Ok(super::print(&output)?)
}

fn json(desired: &Desired) -> String {
    let backends = |pool: &[shunt_core::model::Backend]| -> Vec<String> {
        let pool: BTreeSet<_> = pool.iter().collect();
        pool.into_iter().map(|b| SocketAddr::new(b.address, b.port).to_string()).collect()
    };
    let frontends: Vec<serde_json::Value> = desired
        .frontends()
        .into_iter()
        .map(|(key, frontend)| {
            let (main, short_circuit) = shunt_core::plan::Frontend::pools_of(key);
            let mut object = serde_json::json!({
                "servicePort": &*frontend.label,
                "family": key.family().to_string(),
                "outcome": match frontend.outcome {
                    Outcome::Balance(_) => "balance",
                    Outcome::Reject => "reject",
                    Outcome::Drop => "drop",
                },
                "backends": backends(frontend.pool(key, main)),
                "loadBalancing": frontend.balancing.name(),
                "masquerade": frontend.masquerade,
            });
            match key {
                FrontendKey::Address(address, protocol, port) => {
                    object["address"] = address.to_string().into();
                    object["protocol"] = protocol.to_string().into();
                    object["port"] = port.into();
                }
                FrontendKey::NodePort(_, protocol, port) => {
                    object["protocol"] = protocol.to_string().into();
                    object["nodePort"] = port.into();
                }
            }
            let local = frontend.pool(key, short_circuit);
            if !local.is_empty() {
                object["backendsForLocalTraffic"] = backends(local).into();
            }
            if let Some(sources) = &frontend.sources {
                let range = |r: &shunt_core::plan::SourceRange| format!("{}-{}", r.first, r.last);
                object["sources"] = sources.iter().map(range).collect::<Vec<_>>().into();
            }
            object
        })
        .collect();
    format!("{:#}\n", serde_json::json!({ "frontends": frontends }))
}
