//! Processes that listen on node ports, which packets to these ports will not reach.

use shunt_core::model::Store;
use shunt_core::plan::NodeContext;

use super::{Line, others, some_of};
use crate::taken_ports::{NodePorts, taken_now};

/// The name of the line.
pub(super) const NAME: &str = "node-port-listeners";

pub(super) fn check(store: &Store, node_context: &NodeContext, others: &others::Facts) -> Line {
    if !store.is_synced() {
        return Line::skip(NAME, "the node ports are not known: give --manifests");
    }
    let addresses = node_context.own_node_port_addresses();
    let taken = match taken_now(&NodePorts::of(store), &addresses) {
        Ok(taken) => taken,
        Err(error) => return Line::skip(NAME, error.to_string()),
    };
    if taken.is_empty() {
        return Line::ok(NAME, "no process listens on a node port");
    }
    let mut remedy =
        "move these processes to other ports, or give the Services other nodePorts; a \
                      process stays reachable on loopback"
            .to_owned();
    // Up to version 1.20 it listens on all node ports.
    if others.kube_proxy.as_ref().is_ok_and(|found| !found.is_nothing()) {
        remedy.push_str("; nothing to do if it is kube-proxy, which listens on them up to 1.20");
    }
    Line::warn(NAME, some_of(taken), remedy)
}
