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
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod kernel;
mod listener;
mod objects;
mod socket;
mod uapi;
mod userdata;

pub use crate::attr::{Attr, Attrs};
pub use batch::{Batch, FinishedBatch};
pub use dump::{Age, DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable};
pub use element::{ElementData, Elements, VerdictCode};
pub use error::{Error, Refusal};
pub use expr::{Expr, Register};
#[cfg(any(test, feature = "fuzz"))]
pub use fuzz::fuzz;
pub use kernel::{Generation, Kernel};
pub use listener::{Listener, Writer};
pub use objects::{
    BaseChain, ChainKind, Hook, SetData, SetType, TABLE_OWNER, TABLE_PERSIST, TableFamily,
};
pub use socket::Socket;
pub use userdata::{SetField, TypeOf};
