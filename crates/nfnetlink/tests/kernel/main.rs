//! The modules of this crate against the kernel of this machine, in fresh network namespaces.

mod base_chains;
mod connections;
mod hooks;
mod judge;
mod lookup;
mod route;
