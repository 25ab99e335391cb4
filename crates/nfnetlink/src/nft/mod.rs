//! nf_tables over netlink: typed objects in, one transaction out, and the dump of what is there.
//!
//! Owns: the encoding of messages ([`Batch`], [`Elements`], [`Expr`]), the [`Socket`] with its
//! commit, generation and dump calls as the trait [`Kernel`], and the kernel's errors ([`Refusal`]).
//! Tables, chains, sets and rules are few and are encoded by libnftnl through the `nftnl` crate;
//! element messages scale with the cluster and are encoded by hand into the same batch.
//!
//! The kernel names a refused message by its number, and a [`FinishedBatch`] says what that is:
//!
//! ```
//! use nfnetlink::nft::{Batch, Elements, TableFamily};
//! use nix::errno::Errno;
//!
//! let mut addresses = Elements::new();
//! addresses.push(&[192, 0, 2, 1], None, None);
//! let mut batch = Batch::new(None);
//! batch.add_elements(TableFamily::Ip, "nat", "addresses", &addresses);
//! let refusal = batch.finish().refusal(1, Errno::ENOENT, None);
//! assert_eq!(
//!     refusal.to_string(),
//!     "add an element to ip nat addresses key c0000201: No such file or directory (2)"
//! );
//! ```
//!
//! Must not know: which tables and sets a program has, and what they mean.

mod base_chains;
mod batch;
mod dump;
mod element;
mod expr;
mod expr_codec;
mod judge;
mod kernel;
mod listener;
mod objects;
mod refusal;
mod rule_text;
mod socket;
mod timeouts;
mod trace;
#[doc(hidden)]
pub mod uapi;
mod userdata;
mod verdict;

pub use crate::error::Error;
pub use crate::family::Family as TableFamily;
pub use base_chains::{AttachedChain, NfProto};
pub use batch::{Batch, FinishedBatch};
pub use dump::{Counter, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable};
pub use element::{Age, ElementData, Elements};
pub use expr::{Bitwise, Comparison, Expr, Extension, Register, Wanted};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use judge::fuzz as fuzz_judge;
pub use judge::{JudgedPacket, Judgement, Mark, Passing, Place};
pub use kernel::{Generation, Kernel};
pub use listener::{Listener, Writer};
pub use objects::{
    BaseChain, ChainType, Hook, SetType, TABLE_DORMANT, TABLE_OWNER, TABLE_PERSIST, VERDICTS,
};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use refusal::Answer;
pub use refusal::Refusal;
pub use rule_text::rule_text;
pub use socket::Socket;
pub use timeouts::{DumpedTimeouts, TCP_TIMEOUTS};
pub use trace::{PacketHeader, TraceEvent, TraceListener, TraceStep};
pub use userdata::{SetField, TypeOf};
pub use verdict::Verdict;
