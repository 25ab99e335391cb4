//! The nodes that send an Event whose cause all nodes see.

use std::collections::HashSet;
use std::sync::Arc;

use super::{EventScope, Notice};

/// The number of nodes that send such an Event: more than one, because a node may be down or have no
/// agent. Clusters without more nodes have no silent ones.
const WRITERS: usize = 5;

/// Returns true if a node is one of the writers: the nodes with the smallest hashes of node and
/// Event (rendezvous hashing). All nodes get the same result from the same `nodes`. If too few are
/// known, every node is a writer.
pub(super) fn is_writer(node: &str, nodes: &HashSet<Arc<str>>, notice: &Notice) -> bool {
    let Some(service) = &notice.service else { return true };
    if notice.scope == EventScope::Node || nodes.len() <= WRITERS {
        return true;
    }
    // The name of the node first: all that follows mixes it.
    let rank = |node: &str| fnv1a(&format!("{node}/{service}/{}", notice.reason));
    let own = rank(node);
    let before = nodes.iter().filter(|other| rank(other) < own).take(WRITERS).count();
    nodes.contains(node) && before < WRITERS
}

/// A hash that is the same in all processes and versions (64-bit FNV-1a).
pub(super) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shunt_core::model::ObjectName;

    use super::*;

    fn conflict(service: &str) -> Notice {
        let service = ObjectName::new("shop", service);
        let (reason, action) = ("FrontendConflict", "ProgramService");
        Notice::of_service(&service, EventScope::Cluster, reason, action, String::new())
    }

    fn nodes(count: usize) -> HashSet<Arc<str>> {
        (0..count).map(|n| format!("node-{n}").into()).collect()
    }

    fn writers(nodes: &HashSet<Arc<str>>, notice: &Notice) -> Vec<Arc<str>> {
        nodes.iter().filter(|node| is_writer(node, nodes, notice)).cloned().collect()
    }

    #[test]
    fn five_of_a_thousand_nodes_are_writers() {
        let nodes = nodes(1000);
        let mut events = BTreeMap::<Arc<str>, usize>::new();
        for service in 0..20 {
            let writers = writers(&nodes, &conflict(&format!("web-{service}")));
            assert_eq!(writers.len(), WRITERS, "web-{service}");
            writers.into_iter().for_each(|node| *events.entry(node).or_default() += 1);
        }
        // No node has a large part of the 100 Events.
        assert!(events.len() > 80 && events.values().all(|events| *events < 5), "{events:?}");
    }

    #[test]
    fn every_node_is_a_writer_of_its_own_events() {
        let unbound = Notice { scope: EventScope::Node, ..conflict("web") };
        assert_eq!(writers(&nodes(100), &unbound).len(), 100);
    }

    #[test]
    fn every_node_of_a_small_cluster_is_a_writer() {
        for count in 0..=WRITERS {
            let nodes = nodes(count);
            assert_eq!(writers(&nodes, &conflict("web")).len(), count);
            assert!(is_writer("without-endpoints", &nodes, &conflict("web")), "{count}");
        }
    }

    #[test]
    fn node_without_endpoints_is_silent_in_a_larger_cluster() {
        let silent = |n| !is_writer(&format!("other-{n}"), &nodes(100), &conflict("web"));
        assert!((0..100).all(silent));
    }

    #[test]
    fn nodes_agree_although_one_misses_a_change() {
        let (all, notice) = (nodes(5000), conflict("web"));
        let late: HashSet<Arc<str>> = all.iter().filter(|n| !n.ends_with('7')).cloned().collect();
        // Each node decides by what it has: half of them have a tenth less.
        let has_less = |node: &str| fnv1a(node) & 1 == 1;
        let of = |node: &str| if has_less(node) { &late } else { &all };
        let count = all.iter().filter(|node| is_writer(node, of(node), &notice)).count();
        assert!((1..=2 * WRITERS).contains(&count), "{count}");
    }
}
