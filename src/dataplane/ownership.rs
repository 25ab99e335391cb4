//! The ownership of shunt's tables.
//!
//! On Linux 6.9 and later, a running agent owns its tables, so that no other process can modify
//! them. The tables persist after the agent, and the next agent takes them over.

use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, Error, Hook, Kernel, Refusal, SetType, TABLE_DORMANT, TABLE_OWNER,
    TABLE_PERSIST, TableFamily,
};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{LAYOUT_COMMENT, Set, TABLE};

use super::capacity::Sizes;
use super::codec::{set_type, table_family};

/// The flags of an owned table. Without persistence, the table would end with the agent.
pub(super) const OWNED: u32 = TABLE_OWNER | TABLE_PERSIST;

/// The name of a table that never exists.
const PROBE: &str = "shunt-probe";

/// The policy for the ownership of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The agent owns its tables while it runs.
    Own,
    /// The next agent can own the tables: for a process that ends after its commit.
    Leave,
    /// Any process can modify the tables, like on kernels before 6.9.
    Share,
}

/// The ownership policy, and the kernel's support for it.
#[derive(Debug)]
pub(super) struct OwnershipPolicy {
    pub(super) wanted: Ownership,
    /// `None`: unknown.
    pub(super) kernel_can: Option<bool>,
}

impl OwnershipPolicy {
    /// Returns true if new tables are created as owned ones, as far as is known.
    pub(super) fn creates_owned_tables(&self) -> bool {
        self.wanted != Ownership::Share && self.kernel_can != Some(false)
    }

    /// Returns true if the agent takes over tables without an owner.
    pub(super) fn takes_over(&self) -> bool {
        self.wanted == Ownership::Own
    }
}

/// The owner of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableOwner {
    /// This socket.
    Ours,
    /// None at the moment.
    Orphan,
    /// None, for good: the flags of a table cannot be set later.
    Shared,
}

impl TableOwner {
    /// Returns the owner by a table's flags and port, seen from the socket with that port. `None`
    /// for flags that shunt does not set.
    pub(super) fn of(
        family: TableFamily,
        flags: u32,
        owner: Option<u32>,
        port: u32,
    ) -> Result<Option<TableOwner>, Error> {
        match (owner, flags) {
            (Some(owner), OWNED) if owner == port => Ok(Some(TableOwner::Ours)),
            (Some(port), _) => Err(Error::Owned { family, table: TABLE.to_owned(), port }),
            // The kernel clears the flag when the owner ends.
            (None, TABLE_PERSIST) => Ok(Some(TableOwner::Orphan)),
            (None, 0) => Ok(Some(TableOwner::Shared)),
            (None, _) => Ok(None),
        }
    }
}

/// Returns true if the kernel refused one of shunt's tables because of unknown flags.
pub(super) fn is_about_flags(refusal: &Refusal) -> bool {
    let about_table = refusal.table == TABLE && refusal.object.is_empty();
    about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Returns true if the kernel supports tables that are owned and persist. The probe is a
/// transaction that always fails, since it deletes a missing table. It takes some milliseconds (the
/// kernel waits for an RCU grace period), so the agent probes only before it replaces tables.
/// Without tables, the first transaction shows the support.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn has_owned_tables(kernel: &mut dyn Kernel) -> Result<bool, Error> {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, PROBE, OWNED, PROBE);
    Ok(refusals_of(kernel, batch)?.iter().all(|refusal| {
        let unknown = matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL);
        refusal.table != PROBE || !unknown
    }))
}

/// Returns true if the kernel has nf_tables for IPv6 (`CONFIG_NF_TABLES_IPV6`). Without it, Linux 6.8
/// refuses a table (`EOPNOTSUPP`), older kernels its base chains (`ENOENT`). The probe is like that of
/// [`has_owned_tables`].
pub(crate) fn has_ipv6(kernel: &mut dyn Kernel) -> Result<bool, Error> {
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip6, PROBE, TABLE_DORMANT, PROBE);
    let base = BaseChain { kind: ChainKind::Nat, hook: Hook::Prerouting, priority: 0 };
    batch.add_chain(TableFamily::Ip6, PROBE, PROBE, Some(base));
    // Whatever the reason for the first refusal is, the others may follow from it.
    Ok(!refusals_of(kernel, batch)?.first().is_some_and(|first| may_lack(TableFamily::Ip6, first)))
}

/// Returns true if the kernel refused an object of a table, as it does without tables of the family.
pub(super) fn may_lack(family: TableFamily, refusal: &Refusal) -> bool {
    let absent = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::ENOENT];
    let is_shared = refusal.family == Some(family) && refusal.keys.is_empty();
    is_shared && absent.contains(&refusal.errno)
}

/// Commits a transaction that never succeeds.
fn refusals_of(kernel: &mut dyn Kernel, mut batch: Batch) -> Result<Vec<Refusal>, Error> {
    batch.delete_table(TableFamily::Ip, "shunt-probe-nowhere");
    match kernel.commit(&batch.finish()) {
        Err(Error::Refused(refusals)) => Ok(refusals),
        Err(error) => Err(error),
        Ok(()) => Err(Error::Malformed("success for the deletion of a missing table")),
    }
}

/// Creates a table with its sets, which have these sizes.
pub(super) fn create_table(family: Family, flags: u32, sizes: &Sizes, batch: &mut Batch) {
    let table = table_family(family);
    batch.add_table(table, TABLE, flags, LAYOUT_COMMENT);
    Set::ALL.into_iter().for_each(|set| add_set(family, set, sizes, batch));
}

/// Adds a set, which has one of these sizes.
pub(super) fn add_set(family: Family, set: Set, sizes: &Sizes, batch: &mut Batch) {
    let kind = set_type(family, set);
    let size = sizes[set as usize].or(kind.size);
    batch.add_set(table_family(family), TABLE, set.name(), &SetType { size, ..kind });
}
