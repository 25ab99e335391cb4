//! Makes the kernel refuse chosen frontends: no input of the agent's does that to one of them alone.
//!
//! Preloaded (`LD_PRELOAD`) into the agent, this library stands in for `sendto`, by which libmnl sends. Of what goes to
//! nf_tables it spoils every element that would be added for a frontend which the environment variable
//! `SHUNT_REFUSE` names, such as `10.96.0.10:80 [fd00:96::10]:80`, on any protocol; and nothing else.
//! The element loses its key. So it is the kernel itself that refuses, in its own words, each
//! transaction with such an element and none without, and the agent is the one that is released. What
//! the agent keeps of its transaction is left as it was.
//!
//! It also stands in for `clock_gettime`: once, in a thread named "dataplane", when there is a file with
//! the path that `SHUNT_STOP_CLOCK` names, the call fails. The standard library panics then, so that one
//! thread of the agent dies.
//!
//! A program that depends on this crate must not name it: it would be linked with this `sendto`.

mod clock;
mod element;
mod sendto;
mod when;
