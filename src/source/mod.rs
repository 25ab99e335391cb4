//! The sources of objects.
//!
//! Owns: the Kubernetes objects in their API form ([`objects`]), their validation and conversion
//! into the model's values, and the sources that deliver them as
//! [`Change`](shunt_core::model::Change)s: [`manifests`] on disk, and the [`kubernetes`] API
//! server.
//!
//! Must not know: planning, nf_tables, or the agent's configuration beyond its arguments.

pub mod file_watch;
pub mod interfaces;
pub mod kubernetes;
pub mod manifests;
pub mod objects;
pub mod spanned_yaml;
