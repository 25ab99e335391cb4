//! Connection tracking: flows that would not find out that their endpoint is gone, and the sysctls of
//! the `conntrack` section of the configuration.
//!
//! A flow that connection tracking knows is translated by its entry; rules are asked for new flows
//! only. UDP has no end that the kernel could see: while a client keeps sending, the entry lives,
//! and if it leads to an endpoint that is gone, or to none because the client was there before the
//! Service, the client is lost for ever. A TCP connection that nothing has answered yet is lost for
//! two minutes after the last SYN. So after each commit that takes an endpoint from a frontend, or
//! that makes one, the stale entries of that frontend are deleted, and the next packet asks the rules
//! again. A connection that was answered once is left alone.
//!
//! Owns: which entries are stale ([`Sweep`], pure), which of them are listed and deleted when
//! ([`Conntrack`]), the thread that does it, so that a commit never waits for a sweep ([`spawn`]),
//! and the [`sysctl`]s.
//!
//! Must not know: Services, slices, nf_tables. It never touches entries of SCTP, answered ones of
//! TCP, nor those of flows to anything but the frontends that a sweep names.

mod kernel;
mod sweep;
pub mod sysctl;
mod worker;

pub use kernel::{Conntrack, Report};
pub use nfnetlink::Error;
pub use sweep::Sweep;
pub use worker::spawn;
