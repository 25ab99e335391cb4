//! Where objects come from.
//!
//! Owns: the Kubernetes objects as they are written ([`objects`]), their validation and conversion
//! into the model's values, and the sources that deliver them as [`Change`](shunt_core::model::Change)s:
//! [`manifests`] on disk, and the [`kubernetes`] API server.
//!
//! Must not know: what is made of the objects (planning, nf_tables), or the agent's configuration
//! beyond what is passed in.

pub mod interfaces;
pub mod kubernetes;
pub mod manifests;
pub mod objects;
