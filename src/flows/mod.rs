//! Connection tracking: deletes flows to removed endpoints, and sets the sysctls of the `conntrack`
//! section of the configuration.
//!
//! The kernel translates a known flow by its entry; rules apply to new flows only. UDP has no end
//! that the kernel could see: an entry lives as long as its client sends. If the entry leads to a
//! removed endpoint, or to none because the client was there before the Service, the client never
//! gets an answer. So after each commit that removes an endpoint from a frontend of UDP, or that adds
//! such a frontend, the agent deletes the stale entries of that frontend. The next packet passes the
//! rules again. TCP needs no sweep: unanswered attempts end by themselves, and connections stay.
//!
//! Owns: the decision which entries are stale ([`Sweep`], pure), their listing and deletion
//! ([`Conntrack`]), the thread for it, so that a commit never waits for a sweep ([`spawn`],
//! [`Sweeps`]), and the [`sysctl`]s.
//!
//! Invariant: a sweep deletes no flow that a commit before its end allows.
//!
//! Must not know: Services, slices, nf_tables. It never deletes entries of TCP or SCTP, or flows
//! to anything but the frontends of a sweep.

mod kernel;
mod queue;
mod sweep;
pub mod sysctl;
mod worker;

pub use kernel::{Conntrack, SweepReport};
pub use nfnetlink::Error;
pub use queue::{Sweeps, Unswept};
pub use sweep::Sweep;
pub use worker::spawn;
