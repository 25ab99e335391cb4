//! Random numbers, so that the agents of a cluster do not act all at once.

use std::hash::{BuildHasher, RandomState};

/// Returns a number from 0 to 1, different in each process and each call. The keys of hash tables
/// are random enough for this.
#[must_use]
pub fn fraction() -> f64 {
    let bits = RandomState::new().hash_one(0_u8);
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}
