//! List and watch, against a server that follows a script.

mod failures;
mod lists;
mod protobuf;
pub(super) mod script;
mod secrets;
