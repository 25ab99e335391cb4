//! What shunt's tables remember of the agent's Node: an agent that starts while the Node cannot be
//! read plans with it, so that no rule changes.
//!
//! The chain [`ChainName::Node`](super::ChainName::Node) has a rule for each fact, as its comment.
//! No packet comes there.

use super::{NodeContext, Rule, Statement};
use crate::model::Node;

/// The longest part of a Node's name in a comment, in bytes (`NFTNL_UDATA_COMMENT_MAXLEN` is 128).
const MAX_NAME: usize = 100;

const UNKNOWN: &str = "no Node";
const NAME: &str = "name";
const ZONE: &str = "zone";
const ADDRESS: &str = "address";
const POD_CIDR: &str = "pod-cidr";

/// Returns the rules that remember the Node.
pub(super) fn remember(node_context: &NodeContext) -> Vec<Rule> {
    let mut facts = Vec::new();
    match &node_context.node {
        // Tables of a source without Nodes say nothing to an agent that needs one.
        None if !node_context.options.requires_node => {}
        None => facts.push(UNKNOWN.to_owned()),
        Some(node) => {
            facts.push(format!("{NAME} {}", short(&node.name)));
            let zone =
                node.zone.iter().filter(|zone| zone.bytes().all(|byte| byte.is_ascii_graphic()));
            facts.extend(zone.map(|zone| format!("{ZONE} {zone}")));
            facts.extend(node.addresses.iter().map(|address| format!("{ADDRESS} {address}")));
            facts.extend(node.pod_cidrs.iter().map(|net| format!("{POD_CIDR} {net}")));
        }
    }
    let rule =
        |fact: String| Rule { statements: vec![Statement::Return], comment: Some(fact.into()) };
    facts.into_iter().map(rule).collect()
}

/// Reads the comments of the rules that remember a Node: the Node of that name, or `None` where the
/// agent that wrote them knew none.
///
/// # Errors
/// If they remember another Node, or are not of this form.
pub fn recall<'a>(
    comments: impl Iterator<Item = &'a str>,
    node_name: &str,
) -> Result<Option<Node>, NotRemembered> {
    let mut comments = comments.peekable();
    if comments.next_if_eq(&UNKNOWN).is_some() {
        return comments.next().map_or(Ok(None), |_| Err(NotRemembered));
    }
    let mut node = Node {
        name: node_name.into(),
        addresses: Vec::new(),
        pod_cidrs: Vec::new(),
        zone: None,
        eligible: false,
    };
    let name = comments.next().and_then(|fact| fact.strip_prefix(NAME)?.strip_prefix(' '));
    if name != Some(short(node_name)) {
        return Err(NotRemembered);
    }
    for fact in comments {
        match fact.split_once(' ').ok_or(NotRemembered)? {
            (ZONE, zone) => node.zone = Some(zone.into()),
            (ADDRESS, it) => node.addresses.push(it.parse().map_err(|_| NotRemembered)?),
            (POD_CIDR, it) => node.pod_cidrs.push(it.parse().map_err(|_| NotRemembered)?),
            _ => return Err(NotRemembered),
        }
    }
    Ok(Some(node))
}

/// The tables remember nothing of the Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRemembered;

fn short(name: &str) -> &str {
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, Dirty, Store};
    use crate::plan::Options;

    fn recalled(
        node: Option<Node>,
        written_as: &str,
        read_as: &str,
    ) -> Result<Option<Node>, NotRemembered> {
        let mut store = Store::new();
        if let Some(node) = node {
            store.apply(Change::node(node), &mut Dirty::default());
        }
        let options = Options { requires_node: true, ..Options::default() };
        let rules = remember(&NodeContext::of(&store, &options, written_as));
        recall(rules.iter().filter_map(|rule| rule.comment.as_deref()), read_as)
    }

    #[test]
    fn a_remembered_node_is_recalled_under_its_name_only() {
        let long = "n".repeat(253);
        for name in ["node-1", &long] {
            let node = Node {
                name: name.into(),
                addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
                pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
                zone: Some("zone-a".into()),
                eligible: false,
            };
            assert_eq!(recalled(Some(node.clone()), name, name), Ok(Some(node.clone())));
            assert_eq!(recalled(Some(node), name, "node-2"), Err(NotRemembered));
        }
        assert_eq!(recalled(None, "node-1", "node-1"), Ok(None));
    }

    #[test]
    fn nothing_is_recalled_from_damaged_rules() {
        for comments in [
            &[][..],
            &["zone a"],
            &["name node-1", "zone"],
            &["name node-1", "address 192.0.2"],
            &["name node-1", "pod-cidr 10.244.0.0/99"],
            &["name node-1", "colour red"],
            &["no Node", "zone a"],
        ] {
            let comments = comments.iter().copied();
            assert_eq!(recall(comments.clone(), "node-1"), Err(NotRemembered), "{comments:?}");
        }
    }
}
