//! What the kernel may answer: see [`crate::fuzz`].

use nfnetlink::message::messages;

use super::entry::Entry;

/// Reads the messages as a dump of entries; what names an entry must name the same again.
pub(crate) fn fuzz(bytes: &[u8]) {
    for message in messages(bytes) {
        let _ = message.verdict();
        if let Some(entry) = Entry::parse(&message.attrs()) {
            let mut name = Vec::new();
            entry.put_name(&mut name);
            assert!(!name.is_empty(), "{entry:?}");
        }
    }
}
