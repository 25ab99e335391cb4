//! Entry points for fuzzing with arbitrary answers of the kernel.

use crate::Family;
use crate::attr::Attrs;
use crate::conntrack::Connection;
use crate::message::messages;
use crate::nft::{
    Answer, AttachedChain, Batch, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable,
    ElementData, Elements, TraceEvent, rule_text,
};
use crate::sock_diag::WaitingSocket;

/// Reads the messages as every kind of answer.
pub fn fuzz(bytes: &[u8]) {
    let mut elements = Elements::new();
    for number in 0..3_u8 {
        elements.push(&[number; 4], Some(ElementData::Value(&[number; 8])), Some("a comment"));
    }
    let mut batch = Batch::new(None);
    batch.add_elements(Family::Ip, "nat", "addresses", &elements);
    let batch = batch.finish();
    for message in messages(bytes) {
        if let Some(answer) = Answer::parse(&message) {
            assert!(!batch.refused(&answer).to_string().is_empty());
        }
        crate::route::parse_all(&message);
        for state in [7, 10] {
            let sockets = WaitingSocket::parse(&message, state);
            assert!(sockets.into_iter().all(|it| it.accepts(it.address)));
        }
        let _ = AttachedChain::parse(&message);
        let _ = TraceEvent::parse(&message).map(|event| event.verdict.to_string());
        let attrs = message.attrs();
        crate::nft::fuzz_judge(&attrs);
        let _ = DumpedTable::parse(&attrs);
        let _ = DumpedChain::parse(&attrs, "nat");
        let _ = DumpedSet::parse(&attrs);
        if let Some(rule) = DumpedRule::parse(&attrs) {
            let _ = rule.targets().count();
            let _ = rule_text(Family::Ip6, &rule.exprs);
        }
        for list in attrs.clone() {
            let _ = list.children().filter_map(|element| DumpedElement::parse(&element)).count();
        }
        if let Some(connection) = Connection::parse(&attrs) {
            let mut name = Vec::new();
            connection.put_name(&mut name);
            assert!(Attrs::new(&name).next().is_some(), "{connection:?}");
        }
    }
}
