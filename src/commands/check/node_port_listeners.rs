//! Processes that listen on node ports, which packets to these ports will not reach.

use shunt_core::model::Store;
use shunt_core::plan::NodeContext;

use super::{Line, others, some_of};
use crate::taken_ports::{NodePorts, TakenPort, taken_now};

/// The name of the line.
pub(super) const NAME: &str = "node-port-listeners";

/// The findings.
pub(super) struct Facts {
    /// The node ports on which processes listen, or why they are not known.
    taken: Result<Vec<TakenPort>, String>,
    /// kube-proxy is here. Up to version 1.20 it listens on all node ports.
    has_kube_proxy: bool,
}

impl Facts {
    pub(super) fn gather(
        store: &Store,
        node_context: &NodeContext,
        others: &others::Facts,
    ) -> Facts {
        let addresses = node_context.own_node_port_addresses();
        let found = others.kube_proxy.as_ref();
        let node_ports = match store.is_synced() {
            true => Ok(NodePorts::of(store)),
            false => Err("the node ports are not known: give --manifests".to_owned()),
        };
        let taken = node_ports.and_then(|node_ports| {
            taken_now(&node_ports, &addresses).map_err(|error| error.to_string())
        });
        let has_kube_proxy = found.is_ok_and(|found| !found.is_nothing());
        Facts { taken, has_kube_proxy }
    }
}

pub(super) fn judge(facts: &Facts) -> Line {
    let taken = match &facts.taken {
        Err(why) => return Line::skip(NAME, why),
        Ok(taken) => taken,
    };
    if taken.is_empty() {
        return Line::ok(NAME, "no process listens on a node port");
    }
    let mut remedy =
        "move these processes to other ports, or give the Services other nodePorts; a \
                      process stays reachable on loopback"
            .to_owned();
    if facts.has_kube_proxy {
        remedy.push_str("; nothing to do if it is kube-proxy, which listens on them up to 1.20");
    }
    Line::warn(NAME, some_of(taken), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome::{Ok as Good, Skip, Warn};
    use super::*;
    use crate::taken_ports::socket_owners::Process;

    fn taken(port: u16, name: Option<&str>) -> TakenPort {
        let process = |name: &str| Process { process: 7, name: name.to_owned() };
        TakenPort {
            port,
            processes: name.map(process).into_iter().collect(),
            ..TakenPort::default()
        }
    }

    #[test]
    fn processes_on_node_ports_are_a_warning() {
        let facts = |taken: Vec<TakenPort>| Facts { taken: Ok(taken), has_kube_proxy: true };
        assert_eq!(judge(&facts(Vec::new())).result, Good);
        let line = judge(&facts(vec![taken(30_080, Some("nginx")), taken(30_081, None)]));
        assert_eq!(line.result, Warn);
        assert!(line.text.starts_with("nginx (process 7) listens on "), "{}", line.text);
        assert!(line.remedy.unwrap_or_default().ends_with("which listens on them up to 1.20"));
        let unknown = Facts { taken: Err("why".to_owned()), has_kube_proxy: false };
        assert_eq!(judge(&unknown).result, Skip);
    }
}
