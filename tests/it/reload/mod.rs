//! A configuration that changes while the agent runs, and what else is asked of its process.

pub(crate) mod configured;
mod fields;
mod files;
mod process;
mod source;
