//! What the kernel may answer: see [`crate::fuzz`].

use super::batch::{Batch, HEADERS, u32_at};
use super::dump::{DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, messages};
use super::element::{ElementData, Elements};
use super::error::Answer;
use super::objects::TableFamily;
use super::uapi::NFTA_SET_ELEM_LIST_ELEMENTS;
use crate::attr::Attrs;

/// Reads the messages as every kind of answer.
pub fn fuzz(bytes: &[u8]) {
    let mut elements = Elements::new();
    for number in 0..3_u8 {
        elements.push(&[number; 4], Some(ElementData::Value(&[number; 8])), Some("a comment"));
    }
    let mut batch = Batch::new(None);
    batch.add_elements(TableFamily::Ip, "shunt", "cluster-ips", &elements);
    let batch = batch.finish();
    for message in messages(bytes) {
        let flags = u32_at(message, 6) as u16;
        if let Some(answer) = Answer::parse(&message[16..], flags) {
            assert!(!answer.refusal(&batch).to_string().is_empty());
        }
        let attrs = Attrs::new(message.get(HEADERS..).unwrap_or(&[]));
        let _ = DumpedTable::parse(&attrs);
        let _ = DumpedChain::parse(&attrs, "shunt");
        let _ = DumpedSet::parse(&attrs);
        if let Some(rule) = DumpedRule::parse(&attrs) {
            let _ = rule.targets().count();
            assert!(rule.is_implemented_by(&rule), "{rule:?}");
        }
        let list = attrs.find(NFTA_SET_ELEM_LIST_ELEMENTS);
        for element in list.iter().flat_map(|list| list.children()) {
            let _ = DumpedElement::parse(&element);
        }
    }
}
