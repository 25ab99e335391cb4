//! Maps and sets that iterate in the order of insertion.
//!
//! A start plans and compares all objects once. In insertion order, neighbours are also neighbours
//! in memory: the start is twice as fast as with a `HashMap`. The order is deterministic, too.

use foldhash::fast::RandomState;

/// A map that keeps the order of insertion until the first removal.
pub type ArrivalMap<K, V> = indexmap::IndexMap<K, V, RandomState>;

/// A set that keeps the order of insertion until the first removal.
pub type ArrivalSet<K> = indexmap::IndexSet<K, RandomState>;
