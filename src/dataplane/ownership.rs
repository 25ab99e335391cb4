//! The ownership of shunt's tables.
//!
//! On Linux 6.9 and later, a running agent owns its tables, so that no other process can modify
//! them. The tables persist after the agent, and the next agent takes them over.

use nfnetlink::nft::{Batch, Error, SetType, TABLE_OWNER, TABLE_PERSIST, TableFamily};
use shunt_core::model::Family;
use shunt_core::plan::{LAYOUT_COMMENT, Set, TABLE};

use super::capacity::Sizes;
use super::codec::{set_type, table_family};

/// The flags of an owned table. Without persistence, the table would end with the agent.
pub(super) const OWNED: u32 = TABLE_OWNER | TABLE_PERSIST;

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
    pub(super) kernel_can: bool,
}

impl OwnershipPolicy {
    /// Returns true if new tables are created as owned ones.
    pub(super) fn creates_owned_tables(&self) -> bool {
        self.wanted != Ownership::Share && self.kernel_can
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
