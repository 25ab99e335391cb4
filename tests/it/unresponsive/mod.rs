//! Endpoints that do not answer, although the API lists them as ready: found, ejected, restored.

mod commands;
mod endings;
mod frontends;
mod innocent;
mod modes;
mod overload;
mod reload;
mod scene;
mod stopped;
