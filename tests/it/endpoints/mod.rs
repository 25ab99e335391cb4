//! Endpoints in numbers and states that scenario files cannot make: dead ones and their clients, thousands
//! of them, hash tables without room, a map of affinity that is full.

mod affinity;
pub(crate) mod dead;
mod hash;
mod slices;
