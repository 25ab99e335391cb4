//! nf_tables over netlink: typed objects in, one transaction out, and the dump of what is there.
//!
//! Owns: the encoding of messages ([`Batch`], [`Elements`], [`Expr`]), the [`Socket`] with its
//! commit, generation and dump calls, and the errors of the kernel, named ([`Refusal`]).
//! Tables, chains, sets and rules are few and are encoded by libnftnl through the `nftnl` crate;
//! element messages scale with the cluster and are encoded by hand into the same batch.
//!
//! Must not know: Services, endpoints, or which tables and sets exist.

mod batch;
mod dump;
mod element;
mod error;
mod expr;
mod kernel;
mod listener;
mod objects;
mod refusal;
mod socket;
mod uapi;
mod userdata;

pub use crate::family::Family as TableFamily;
pub use batch::{Batch, FinishedBatch};
pub use dump::{DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable};
pub use element::{Age, ElementData, Elements, VerdictCode};
pub use error::Error;
pub use expr::{Expr, Register};
pub use kernel::{Generation, Kernel};
pub use listener::{Listener, Writer};
pub use objects::{BaseChain, ChainKind, Hook, SetData, SetType, TABLE_OWNER, TABLE_PERSIST};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use refusal::Answer;
pub use refusal::Refusal;
pub use socket::Socket;
pub use userdata::{SetField, TypeOf};
