//! YAML and JSON documents as JSON in the same lines, typed values from it, and the [`Diagnostic`]s
//! about them.
//!
//! Owns: the limits on a text (nesting, aliases, length), the path of a field, the notation of
//! addresses, and the wording of messages about a place in a text.
//!
//! Must not know: the existing objects or settings, files, or I/O of any kind.

mod address;
mod diagnostic;
mod diagnostics;
mod document;
mod parse;
mod path;
mod reader;
mod scalar;
mod typed;

#[cfg(test)]
pub mod tests;

pub use address::{parse_ip, parse_ip_sloppy, parse_net};
pub use diagnostic::{Diagnostic, Severity, excerpt};
pub(crate) use diagnostics::Diagnostics;
pub use document::{Document, SyntaxError, describe};
pub use parse::{documents, parse_leniently};
pub(crate) use path::{push_step, steps};
pub use typed::{TypeError, typed};
