//! Comparisons of the plan with what forwards packets now: `shunt diff`.
//!
//! Owns: the differences between the plan and kube-proxy's forwarding ([`against()`]), and the form of
//! these and of the differences to the kernel ([`KernelComparison`]) as text and JSON. All of it is
//! pure: the caller reads the kernel.
//!
//! Must not know: where the objects of the plan come from.

mod against;
mod json;
mod kernel;
mod text;

pub use against::{Comparison, Difference, Kind, Line, SettingDifference, against};
pub use json::json;
pub use kernel::KernelComparison;
