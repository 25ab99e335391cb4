//! `shunt top`: the new connections a second of each Service.
//!
//! Owns: the model of samples, rates and histories ([`Model`]), the state of the screen with its
//! keys ([`Screen`]), and its drawing ([`draw`]). All of it is pure: the caller reads the counters,
//! the clock and the keyboard.
//!
//! Needs no agent: the elements of the kernel's verdict maps have counters, and names in comments.

mod model;
mod picture;
mod screen;
mod view;

pub use model::{Model, Row, Totals};
pub use picture::{Picture, Service};
pub use screen::{Screen, Sort};
pub use view::draw;
