//! The endpoints of a service port, and why some are not used.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::Serialize;

use crate::model::{Backend, Endpoint, EndpointSlice, Locality, ServicePort, Store};

use super::walk::Choice;
use super::{Policy, Target};

/// An endpoint that an EndpointSlice of the Service lists.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointView {
    /// The address.
    pub address: IpAddr,
    /// The port; `None` if the slice has no port for the service port.
    pub port: Option<u16>,
    /// The node of the endpoint.
    pub node: Option<Arc<str>>,
    /// True on the agent's node.
    #[serde(rename = "local")]
    pub is_local: bool,
    /// True if new connections may get it.
    pub used: bool,
    /// The probability that a new connection gets it; 0 if it is not used.
    pub probability: f64,
    /// Why it is not used; `None` if it is, or if only the kernel knows.
    pub why: Option<NotUsed>,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// `hints.forZones[].name`.
    pub zone_hints: Box<[Arc<str>]>,
}

impl fmt::Display for EndpointView {
    /// Writes the address, with the port if it is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// Why an endpoint gets no new connection. Of several copies, that with the first reason counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotUsed {
    /// Its topology hints name other zones.
    OtherZone,
    /// Its topology hints name other nodes.
    OtherNode,
    /// It is not ready.
    NotReady,
    /// It is terminating, and ready ones exist or it does not serve any more.
    Terminating,
    /// The policy is Local, and it is on another node.
    NotLocal,
    /// It has an address of the other family.
    OtherFamily,
    /// Its EndpointSlice has no port with the name and protocol of the service port.
    PortMissing,
    /// Its EndpointSlice has the weight 0.
    Drained,
}

impl NotUsed {
    /// Returns the reason as text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            NotUsed::NotReady => "not ready",
            NotUsed::Terminating => "terminating",
            NotUsed::OtherZone => "its topology hints name other zones",
            NotUsed::OtherNode => "its topology hints name other nodes",
            NotUsed::NotLocal => "on another node, and the policy is Local",
            NotUsed::OtherFamily => "its address is of the other IP family",
            NotUsed::PortMissing => {
                "its EndpointSlice has no port with the Service port's name and protocol"
            }
            NotUsed::Drained => "drained: an annotation sets the weight of its EndpointSlice to 0",
        }
    }
}

/// Returns the choices among the backends of a pool, which have equal probabilities.
pub(super) fn choices_of(pool: &[Backend]) -> Vec<Choice> {
    let probability = 1.0 / f64::from(u32::try_from(pool.len()).unwrap_or(u32::MAX).max(1));
    pool.iter().map(|backend| Choice::of(*backend, probability)).collect()
}

/// Lists the endpoints in all EndpointSlices of the Service: used ones first, then by address.
pub(super) fn endpoints(
    store: &Store,
    target: &Target,
    locality: Locality<'_>,
    choices: &[Choice],
) -> Vec<EndpointView> {
    let mut views: Vec<EndpointView> = Vec::new();
    for slice in store.slices(&target.service) {
        let ports: Vec<Option<u16>> = match slice_ports(slice, &target.port) {
            ports if ports.is_empty() => vec![None],
            ports => ports.into_iter().map(Some).collect(),
        };
        for endpoint in &slice.endpoints {
            views.extend(ports.iter().map(|port| view(slice, endpoint, *port, target, locality)));
        }
    }
    // Of several copies of one endpoint, the one that counts comes first.
    views.sort_by_key(|view| {
        let has_no_weight = view.why != Some(NotUsed::Drained);
        (view.address, view.port, view.terminating, !view.ready, has_no_weight, view.why)
    });
    views.dedup_by_key(|view| (view.address, view.port));
    for view in &mut views {
        let backend = view.port.map(|port| Backend { address: view.address, port });
        let chosen = choices.iter().filter(|choice| Some(choice.backend) == backend);
        view.probability = chosen.fold(0.0, |sum, choice| sum + choice.probability);
        view.used = view.probability > 0.0;
        if view.used {
            view.why = None;
        }
    }
    views.sort_by_key(|view| (!view.used, view.address, view.port));
    views
}

fn slice_ports(slice: &EndpointSlice, port: &ServicePort) -> Vec<u16> {
    let matching = slice.ports.iter().filter(|own| own.name == port.name);
    matching.filter(|own| own.protocol == port.protocol).map(|own| own.port).collect()
}

fn view(
    slice: &EndpointSlice,
    endpoint: &Endpoint,
    port: Option<u16>,
    target: &Target,
    locality: Locality<'_>,
) -> EndpointView {
    let is_local = endpoint.node.as_deref() == Some(locality.node);
    let why = if slice.family != target.key.family() {
        Some(NotUsed::OtherFamily)
    } else if port.is_none() {
        Some(NotUsed::PortMissing)
    } else if !endpoint.ready && endpoint.terminating {
        Some(NotUsed::Terminating)
    } else if !endpoint.ready {
        Some(NotUsed::NotReady)
    } else if slice.weight == Some(0) {
        Some(NotUsed::Drained)
    } else if target.policy != Policy::Local {
        topology(endpoint, locality)
    } else {
        (!is_local).then_some(NotUsed::NotLocal)
    };
    EndpointView {
        address: endpoint.address,
        port,
        node: endpoint.node.clone(),
        is_local,
        used: false,
        probability: 0.0,
        why,
        ready: endpoint.ready,
        terminating: endpoint.terminating,
        zone_hints: endpoint.zone_hints().into(),
    }
}

/// Returns which hints of an endpoint name other nodes or zones.
fn topology(endpoint: &Endpoint, locality: Locality<'_>) -> Option<NotUsed> {
    let others = |hints: &[Arc<str>], here: &str| {
        !hints.is_empty() && !hints.iter().any(|hint| &**hint == here)
    };
    if others(endpoint.node_hints(), locality.node) {
        return Some(NotUsed::OtherNode);
    }
    let zone = locality.zone.filter(|zone| others(endpoint.zone_hints(), zone));
    zone.map(|_| NotUsed::OtherZone)
}
