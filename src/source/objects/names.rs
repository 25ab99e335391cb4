//! Names that occur in many objects, kept once.

use std::collections::HashSet;
use std::sync::Arc;

/// Keeps one copy of each text that objects have in common: names of nodes, zones, ports, Services.
/// With 100 000 endpoints on 1 000 nodes that is 1 000 node names instead of 100 000.
#[derive(Debug, Default)]
pub struct Names {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

/// Below this many names looking for unused ones is not worth the time.
const SWEEP_FLOOR: usize = 1024;

impl Names {
    /// No names yet.
    #[must_use]
    pub fn new() -> Names {
        Names::default()
    }

    /// The one copy of this text.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at {
            // Doubling makes a sweep cost no more than the additions since the last one.
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
