//! Text that people write: YAML and JSON documents as trees that know their lines, typed values
//! out of such trees, and the [`Diagnostic`]s that are found in them.
//!
//! Owns: the limits on what a text may do to us (nesting, aliases, length), the path of a field, how addresses are written, and
//! the wording of messages about a place in a text.
//!
//! Must not know: which objects or settings exist, files, or I/O of any kind.

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
