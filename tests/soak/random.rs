//! Numbers that follow from a seed, so that what happened can be made to happen again.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Random(u64);

/// A seed that nobody knows before.
pub(crate) fn seed() -> u64 {
    // Small enough to be typed.
    RandomState::new().hash_one(()) >> 40
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// One of these.
    pub(crate) fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
