//! Maps and sets that are walked in the order in which things came.
//!
//! A start plans and compares everything once. What came together lies together in memory then, which
//! makes that twice as fast as the scattered order of a `HashMap`; and the order is always the same.

use foldhash::fast::RandomState;

/// A map that keeps the order of arrival, until something is removed.
pub type ArrivalMap<K, V> = indexmap::IndexMap<K, V, RandomState>;

/// A set that keeps the order of arrival, until something is removed.
pub type ArrivalSet<K> = indexmap::IndexSet<K, RandomState>;
