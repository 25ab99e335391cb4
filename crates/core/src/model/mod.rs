//! The state of the cluster, in the smallest form that planning needs.
//!
//! Owns: Services, EndpointSlices, the agent's Node and ServiceCIDRs as validated values
//! ([`Service`], [`EndpointSlice`], [`Node`]), the [`Store`] that holds them, and the selection of
//! the [`endpoints`] that a service port may use.
//!
//! Must not know: the sources of objects (files, an API server), nf_tables, a clock, or I/O of any
//! kind. Everything in here can be tested without root.

mod batch;
mod change;
mod collections;
mod endpoints;
mod gone;
mod objects;
mod store;

pub use batch::{ChangeBatch, ChangeCounts};
pub use change::{Change, Dirty};
pub use collections::{ArrivalMap, ArrivalSet, SharedMap};
pub use endpoints::{Backend, Locality, Selection, Weights, missing, select};
pub use gone::{GONE_FOR, GoneEndpoints, MAX_GONE, SETTLE};
pub use objects::{
    Balancing, Endpoint, EndpointPort, EndpointSlice, Family, Hints, Ignored, Kind, Node,
    ObjectName, Protocol, Service, ServicePort, TrafficPolicy,
};
pub use store::Store;
