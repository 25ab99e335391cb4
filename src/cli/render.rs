//! `shunt render`: the planned ruleset as text, without a kernel.

use std::collections::BTreeSet;

use anyhow::Context;

use super::Failure;
use super::args::{Output, Render};
use super::observe::report_conflict;
use super::settings::effective;
use crate::model::{Dirty, Family, Store};
use crate::plan::{
    ChainName, Desired, Element, FrontendKey, Outcome, base_chains, on_demand_chain, render as text,
};
use crate::source::manifests::{self, Locations};

pub(super) fn render(arguments: &Render) -> Result<(), Failure> {
    let settings = effective(&arguments.settings, &arguments.logging)?;
    let locations = Locations::default();
    let round = manifests::load(&arguments.manifests, &settings.node_name, &locations)
        .context("cannot read the manifests")?;
    round.problems.iter().for_each(|problem| problem.log());
    let mut store = Store::new();
    let mut dirty = Dirty::default();
    round.changes.into_iter().for_each(|change| store.apply(change, &mut dirty));
    let mut desired = Desired::new(settings.options(), &settings.node_name);
    desired.update(&store, &dirty);
    desired.conflicts().for_each(|conflict| report_conflict(conflict, &store, &locations));
    let output = match arguments.output {
        Output::Nft => nft(&desired),
        Output::Json => json(&desired),
    };
    Ok(super::print(&output)?)
}

fn nft(desired: &Desired) -> String {
    let Some(surroundings) = desired.surroundings() else { return String::new() };
    let frontends = desired.frontends();
    let mut output = String::new();
    for family in Family::ALL {
        let own = frontends.iter().filter(|(key, _)| key.family() == family);
        let mut elements: Vec<Element<'_>> =
            own.clone().flat_map(|(key, frontend)| frontend.elements(*key)).collect();
        let members = desired.members().into_iter().filter(|member| member.family() == family);
        elements.extend(members.map(|member| member.element()));
        elements.sort();
        let on_demand: BTreeSet<ChainName> =
            own.flat_map(|(key, frontend)| frontend.chains(*key)).collect();
        let mut chains = base_chains(surroundings, family);
        chains.extend(on_demand.into_iter().filter_map(on_demand_chain));
        output.push_str(&text(family, &chains, &elements));
    }
    output
}

fn json(desired: &Desired) -> String {
    let backends = |pool: &[crate::model::Backend]| -> Vec<String> {
        pool.iter().map(|b| std::net::SocketAddr::new(b.address, b.port).to_string()).collect()
    };
    let frontends: Vec<serde_json::Value> = desired
        .frontends()
        .into_iter()
        .map(|(key, frontend)| {
            let (main, short_circuit) = crate::plan::Frontend::pools_of(key);
            let mut object = serde_json::json!({
                "servicePort": &*frontend.label,
                "family": key.family().to_string(),
                "outcome": match frontend.outcome {
                    Outcome::Balance(_) => "balance",
                    Outcome::Reject => "reject",
                    Outcome::Drop => "drop",
                },
                "backends": backends(frontend.pool(key, main)),
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
                let range = |r: &crate::plan::SourceRange| format!("{}-{}", r.first, r.last);
                object["sources"] = sources.iter().map(range).collect::<Vec<_>>().into();
            }
            object
        })
        .collect();
    format!("{:#}\n", serde_json::json!({ "frontends": frontends }))
}
