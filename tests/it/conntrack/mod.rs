//! Stale UDP flows in real connection tracking: made by datagrams through rules written by hand,
//! looked at with `conntrack`, which is not ours.
#![allow(clippy::expect_used, reason = "the addresses are written in the tests")]

mod crowd;
