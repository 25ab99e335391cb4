#![doc = include_str!("../README.md")]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod attr;
pub mod conntrack;
mod error;
mod family;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
pub mod ipvs;
pub mod message;
pub mod nft;
pub mod route;
pub mod sock_diag;
pub mod socket;
pub mod xtables;

pub use error::Error;
pub use family::Family;
#[cfg(any(test, feature = "fuzz"))]
pub use fuzz::fuzz;
