//! The calls to nf_tables as a trait, so that a model of the kernel can answer them in tests.

use super::{
    DumpedChain, DumpedElement, DumpedRule, DumpedSet, DumpedTable, DumpedTimeouts, Error,
    FinishedBatch,
};
use crate::Family;

/// The generation of the rules in a network namespace, with the requesting process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The number, which every commit to any table of the namespace increments.
    pub id: u32,
    /// The process that asks, or that has made the generation if this is an event; 0 if the kernel
    /// does not say.
    pub pid: u32,
    /// The name of that process.
    pub process: String,
}

/// The nf_tables of one network namespace. [`Socket`](super::Socket) is the real one.
pub trait Kernel: Send {
    /// Commits a transaction as a whole. After success the namespace's generation is one higher.
    ///
    /// # Errors
    /// After any error, nothing was applied. [`Error::StaleGeneration`] and [`Error::Refused`] are
    /// refusals of the kernel, the others are failures of the request.
    fn commit(&mut self, batch: &FinishedBatch) -> Result<(), Error>;

    /// Returns the current generation.
    ///
    /// # Errors
    /// [`Error::Request`] if the kernel has no nf_tables (`EINVAL`) or forbids it (`EPERM`).
    fn generation(&mut self) -> Result<Generation, Error>;

    /// Returns the netlink port of the connection, by which the kernel knows the owner of a table.
    fn port(&self) -> u32;

    /// Replaces the connection to the kernel, as a new process would: the tables of the old one have
    /// no owner any more.
    ///
    /// # Errors
    /// [`Error::Open`] if the kernel refuses a socket.
    fn reconnect(&mut self) -> Result<(), Error>;

    /// Returns the table of that name, if there is one.
    ///
    /// # Errors
    /// [`Error::Request`] if the kernel refuses the query.
    fn table(&mut self, family: Family, table: &str) -> Result<Option<DumpedTable>, Error>;

    /// Lists the chains of a table.
    ///
    /// # Errors
    /// As every listing: [`Error::Interrupted`] if commits interrupt every attempt.
    fn chains(&mut self, family: Family, table: &str) -> Result<Vec<DumpedChain>, Error>;

    /// Lists the sets and maps of a table.
    ///
    /// # Errors
    /// As every listing: [`Error::Interrupted`] if commits interrupt every attempt.
    fn sets(&mut self, family: Family, table: &str) -> Result<Vec<DumpedSet>, Error>;

    /// Lists the objects `ct timeout` of TCP of a table.
    ///
    /// # Errors
    /// As every listing: [`Error::Interrupted`] if commits interrupt every attempt.
    fn timeouts(&mut self, family: Family, table: &str) -> Result<Vec<DumpedTimeouts>, Error>;

    /// Lists the rules of a table, chain by chain in their order.
    ///
    /// # Errors
    /// As every listing: [`Error::Interrupted`] if commits interrupt every attempt.
    fn rules(&mut self, family: Family, table: &str) -> Result<Vec<DumpedRule>, Error>;

    /// Calls `each` with every element of a set or map.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if other processes committed meanwhile, nearly always to tables of their
    /// own.
    fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(DumpedElement<'_>),
    ) -> Result<(), Error>;

    /// Looks up elements of a set or map by their keys, as `nft get element` does. Calls `each`
    /// with the place of a key and its element. In a set of ranges, that is the range that contains
    /// the key; a set or table that does not exist has none. The caller pads each field of a key to four
    /// bytes. The keys may be answered by different generations.
    ///
    /// # Errors
    /// [`Error::Request`] with `EINVAL` if a key has another length than the keys of the set.
    fn lookup(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, DumpedElement<'_>),
    ) -> Result<(), Error>;
}
