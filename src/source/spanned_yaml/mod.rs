//! YAML and JSON documents as trees with line numbers, typed values from such trees, and the
//! [`Diagnostic`]s about them.
//!
//! Owns: the limits on a text (nesting, aliases, length), the path of a field, the notation of
//! addresses, and the wording of messages about a place in a text.
//!
//! Must not know: the existing objects or settings, files, or I/O of any kind.

mod address;
mod diagnostic;
mod path;
mod read;
mod scalar;
mod tree;
mod typed;

#[cfg(test)]
mod tests;

pub use address::{parse_ip, parse_ip_sloppy, parse_net};
pub use diagnostic::{Diagnostic, Severity, excerpt};
pub use path::{At, FieldPath, Segment};
pub use read::{SyntaxError, documents, parse, parse_leniently};
pub use tree::{Entry, Node, Scalar, Value};
pub use typed::{TypeError, typed, typed_reporting_unknown};
