//! List and watch, against a server that follows a script.

mod failures;
mod lists;
mod protobuf;
mod script;
mod secrets;
