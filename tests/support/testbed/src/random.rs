//! Numbers that follow from a seed, so that what happened can be made to happen again.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;

use anyhow::{Context, Result};

/// Names the seed of all random tests.
const VARIABLE: &str = "SHUNT_SEED";

/// The seed of a test: `SHUNT_SEED`, or else `usual`, or else one that no run had before. A test that
/// fails must show it.
pub fn seed(usual: impl Into<Option<u64>>) -> Result<u64> {
    match env::var(VARIABLE) {
        Ok(text) => text.parse().with_context(|| format!("{VARIABLE}={text:?} is no number")),
        // Small enough to be typed.
        Err(_) => Ok(usual.into().unwrap_or_else(|| RandomState::new().hash_one(()) >> 40)),
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}
