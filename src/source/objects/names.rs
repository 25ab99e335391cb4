//! Interns the names that occur in many objects.

use std::sync::Arc;

use foldhash::HashSet;

/// A table with one copy of each text that objects share: names of nodes, zones, ports, Services.
/// With 100 000 endpoints on 1 000 nodes, it has 1 000 node names in place of 100 000.
#[derive(Debug, Default)]
pub struct Names {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

/// The minimum number of names for a search for unused ones.
const SWEEP_FLOOR: usize = 1024;

impl Names {
    /// Makes an empty table.
    #[must_use]
    pub fn new() -> Names {
        Names::default()
    }

    /// Returns the shared copy of this text.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at {
            // The doubled threshold bounds the cost of a sweep by the additions since the last one.
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = (2 * self.known.len()).max(SWEEP_FLOOR);
        }
        let name: Arc<str> = text.into();
        self.known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_and_unused_ones_go() {
        let mut names = Names::new();
        let kept = names.get("node-1");
        assert!(Arc::ptr_eq(&kept, &names.get("node-1")));
        for i in 0..10 * SWEEP_FLOOR {
            names.get(&format!("node-{i}"));
        }
        assert!(names.known.len() <= 2 * SWEEP_FLOOR);
        assert!(Arc::ptr_eq(&kept, &names.get("node-1")));
    }
}
