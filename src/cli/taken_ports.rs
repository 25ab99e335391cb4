//! The search for processes on node ports, connected with the rest of the agent.

use std::time::Duration;

use super::events;
use super::sources::endpoint_nodes;
use crate::directory::Directory;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::status::AgentState;
use crate::taken_ports::{Inputs, NodePorts, Report};

/// The parts of the agent that the search uses.
pub(super) struct Parts<'a> {
    pub(super) known: &'a AgentState,
    pub(super) directory: &'a Directory,
    pub(super) metrics: &'a Metrics,
    pub(super) events: &'a Recorder,
}

/// Starts the search, unless the period is zero.
pub(super) fn start(period: Duration, parts: &Parts<'_>) -> std::io::Result<()> {
    if period.is_zero() {
        return Ok(());
    }
    let Parts { known, directory, metrics, events } = *parts;
    let addresses = {
        let known = known.clone();
        move || {
            let context = known.node_context();
            context.map(|context| context.own_node_port_addresses()).unwrap_or_default()
        }
    };
    let node_ports = {
        let directory = directory.clone();
        move |seen| directory.read_services(seen, NodePorts::of)
    };
    let nodes = {
        let directory = directory.clone();
        move || directory.read(endpoint_nodes).len()
    };
    let report = {
        let (known, metrics) = (known.clone(), metrics.clone());
        move |report: Report| {
            metrics.node_ports_taken(report.ports.len());
            known.node_ports_taken(report);
        }
    };
    let event = {
        let (events, known) = (events.clone(), known.clone());
        move |taken: &_| events.record(events::node_port_taken(taken, &known.node()))
    };
    let inputs = Inputs {
        period,
        node_ports: Box::new(node_ports),
        addresses: Box::new(addresses),
        nodes: Box::new(nodes),
        report: Box::new(report),
        event: Box::new(event),
    };
    inputs.start()
}
