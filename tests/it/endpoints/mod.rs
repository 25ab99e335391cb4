//! Dead endpoints and their clients.

pub(crate) mod dead;
