//! The JSON of a comparison, as `docs/diff.md` documents it.

use std::net::SocketAddr;

use serde_json::{Value, json as object};
use shunt_core::plan::FrontendKey;

use super::against::prefixes;
use super::{Comparison, Difference, Kind};
use crate::kube_proxy::{Frontend, Outcome, Sources};

/// Returns the comparison as JSON.
#[must_use]
pub fn json(comparison: &Comparison) -> Value {
    let count = |kind| comparison.differences.iter().filter(|it| it.kind == kind).count();
    let settings: Vec<Value> = comparison
        .settings
        .iter()
        .map(|difference| {
            object!({
                "family": difference.family.to_string(),
                "setting": difference.setting,
                "field": difference.field,
                "kubeProxy": difference.kube_proxy,
                "shunt": difference.shunt,
            })
        })
        .collect();
    object!({
        "mode": comparison.mode.to_string(),
        "summary": {
            "frontends": comparison.frontends,
            "same": comparison.frontends - comparison.differences.len(),
            "onlyKubeProxy": count(Kind::OnlyKubeProxy),
            "onlyShunt": count(Kind::OnlyShunt),
            "outcome": count(Kind::Outcome),
            "backends": count(Kind::Backends),
            "policy": count(Kind::Policy),
        },
        "differences": comparison.differences.iter().map(difference).collect::<Vec<_>>(),
        "settings": settings,
        "notes": comparison.notes,
    })
}

fn difference(difference: &Difference) -> Value {
    let frontend = match difference.key {
        FrontendKey::Address(address, protocol, port) => object!({
            "address": address.to_string(), "protocol": protocol.to_string(), "port": port,
        }),
        FrontendKey::NodePort(family, protocol, port) => object!({
            "family": family.to_string(), "protocol": protocol.to_string(), "nodePort": port,
        }),
    };
    object!({
        "servicePort": (!difference.label.is_empty()).then_some(&difference.label),
        "frontend": frontend,
        "difference": match difference.kind {
            Kind::OnlyKubeProxy => "only-kube-proxy",
            Kind::OnlyShunt => "only-shunt",
            Kind::Outcome => "outcome",
            Kind::Backends => "backends",
            Kind::Policy => "policy",
        },
        "kubeProxy": difference.kube_proxy.as_ref().map(side),
        "shunt": difference.shunt.as_ref().map(side),
        "explanation": difference.explanation,
    })
}

fn side(frontend: &Frontend) -> Value {
    let sources = match &frontend.sources {
        Sources::Unknown => Value::Null,
        Sources::All => object!(["0.0.0.0/0", "::/0"]),
        Sources::Only(ranges) => ranges.iter().flat_map(prefixes).collect::<Vec<_>>().into(),
    };
    object!({
        "servicePort": frontend.label,
        "outcome": outcome(&frontend.outcome),
        "outcomeFromNode": outcome(&frontend.from_node),
        "affinitySeconds": frontend.affinity,
        "masquerade": frontend.masquerade,
        "sources": sources,
    })
}

fn outcome(outcome: &Outcome) -> Value {
    let backend = |(backend, share): (&shunt_core::model::Backend, f64)| {
        let address = SocketAddr::new(backend.address, backend.port);
        object!({"backend": address.to_string(), "probability": (share * 1e6).round() / 1e6})
    };
    let kind = match outcome {
        Outcome::Balance(_) => "balance",
        Outcome::Reject => "reject",
        Outcome::Drop => "drop",
        Outcome::Untranslated => "untranslated",
    };
    object!({"kind": kind, "backends": outcome.backends().map(backend).collect::<Vec<_>>()})
}
