//! What shunt's tables remember of the agent's Node and the ServiceCIDRs: an agent that starts while
//! they cannot be read plans with it, so that no rule changes.
//!
//! The chain [`ChainName::Node`](super::ChainName::Node) has a rule for each fact, as its comment.
//! No packet comes there.

use super::rule::because;
use super::{NodeContext, Rule, Statement};
use crate::model::{Change, Node, ObjectName};

/// The longest name of a Node or zone in a comment, in bytes (`NFTNL_UDATA_COMMENT_MAXLEN` is 128).
const MAX_NAME: usize = 100;

const UNKNOWN: &str = "no Node";
const NAME: &str = "name";
const ZONE: &str = "zone";
const ADDRESS: &str = "address";
const POD_CIDR: &str = "pod-cidr";
const SERVICE_CIDR: &str = "service-cidr";

/// The name of the ServiceCIDR that stands for all remembered ones. No object can have it.
const REMEMBERED: &str = "as of an earlier agent";

/// Returns the rules that remember the Node and the ServiceCIDRs.
pub(super) fn remember(node_context: &NodeContext) -> Vec<Rule> {
    let mut facts = Vec::new();
    match &node_context.node {
        // Tables of a source without Nodes say nothing to an agent that needs one.
        None if !node_context.options.requires_node => {}
        None => facts.push(UNKNOWN.to_owned()),
        Some(node) => {
            facts.push(format!("{NAME} {}", short(&node.name)));
            let fits = |zone: &str| {
                zone.len() <= MAX_NAME && zone.bytes().all(|byte| byte.is_ascii_graphic())
            };
            let zone = node.zone.iter().filter(|zone| fits(zone));
            facts.extend(zone.map(|zone| format!("{ZONE} {zone}")));
            facts.extend(node.addresses.iter().map(|address| format!("{ADDRESS} {address}")));
            facts.extend(node.pod_cidrs.iter().map(|net| format!("{POD_CIDR} {net}")));
        }
    }
    let service_cidrs = node_context.service_cidrs.iter();
    facts.extend(service_cidrs.map(|net| format!("{SERVICE_CIDR} {net}")));
    facts.into_iter().map(|fact| because(fact, [Statement::Return])).collect()
}

/// Reads the comments of these rules. Returns the changes for a store that has read nothing: without a
/// Node if the agent that wrote them knew none; `None` if they remember another Node, or are not of
/// this form.
#[must_use]
pub fn recall<'a>(comments: impl Iterator<Item = &'a str>, node_name: &str) -> Option<Vec<Change>> {
    let mut comments = comments.peekable();
    let mut node = None;
    if comments.next_if_eq(&UNKNOWN).is_none() {
        let name = comments.next().and_then(|fact| fact.strip_prefix(NAME)?.strip_prefix(' '));
        if name != Some(short(node_name)) {
            return None;
        }
        node = Some(Node {
            name: node_name.into(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            zone: None,
            eligible: false,
        });
    }
    let mut service_cidrs = Vec::new();
    for fact in comments {
        match (fact.split_once(' ')?, &mut node) {
            ((SERVICE_CIDR, it), _) => service_cidrs.push(it.parse().ok()?),
            ((ZONE, zone), Some(node)) => node.zone = Some(zone.into()),
            ((ADDRESS, it), Some(node)) => node.addresses.push(it.parse().ok()?),
            ((POD_CIDR, it), Some(node)) => node.pod_cidrs.push(it.parse().ok()?),
            _ => return None,
        }
    }
    let node = node.map(|node| Change::NodeRemembered(node.into()));
    let service_cidrs = Change::ServiceCidr(ObjectName::new("", REMEMBERED), service_cidrs);
    Some(node.into_iter().chain([service_cidrs]).collect())
}

fn short(name: &str) -> &str {
    let end = (0..=MAX_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Dirty, Store};
    use crate::plan::Options;

    fn cidrs() -> Vec<ipnet::IpNet> {
        ["10.96.0.0/12", "fd00:96::/108"].map(|net| net.parse().unwrap()).into()
    }

    fn recalled(node: Option<Node>, written_as: &str, read_as: &str) -> Option<Vec<Change>> {
        let mut store = Store::new();
        let cidrs = Change::ServiceCidr(ObjectName::new("", "kubernetes"), cidrs());
        for change in node.map(Change::node).into_iter().chain([cidrs]) {
            store.apply(change, &mut Dirty::default());
        }
        let options = Options { requires_node: true, ..Options::default() };
        let rules = remember(&NodeContext::of(&store, &options, written_as));
        recall(rules.iter().filter_map(|rule| rule.comment.as_deref()), read_as)
    }

    fn service_cidrs() -> Change {
        Change::ServiceCidr(ObjectName::new("", REMEMBERED), cidrs())
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
            let remembered = vec![Change::NodeRemembered(node.clone().into()), service_cidrs()];
            assert_eq!(recalled(Some(node.clone()), name, name), Some(remembered));
            assert_eq!(recalled(Some(node), name, "node-2"), None);
        }
        assert_eq!(recalled(None, "node-1", "node-1"), Some(vec![service_cidrs()]));
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
            &["no Node", "service-cidr"],
            &["service-cidr 10.96.0.0/12"],
        ] {
            let comments = comments.iter().copied();
            assert_eq!(recall(comments.clone(), "node-1"), None, "{comments:?}");
        }
    }
}
