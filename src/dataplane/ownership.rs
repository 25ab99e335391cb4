//! Whose tables they are.
//!
//! Where the kernel can (6.9 and later), a running agent owns its tables: nobody else may change
//! them, so what was committed stays. They outlive the agent, and the next one takes them over.

use nfnetlink::nft::{Batch, Error, Kernel, Refusal, TABLE_OWNER, TABLE_PERSIST, TableFamily};
use nix::errno::Errno;
use shunt_core::model::Family;
use shunt_core::plan::{LAYOUT_COMMENT, Set, TABLE};

use super::codec::{set_type, table_family};

/// The flags of an owned table. Never the owner alone: then the table would end with the agent.
pub(super) const OWNED: u32 = TABLE_OWNER | TABLE_PERSIST;

/// What the dataplane makes of its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// They are ours alone, as long as we run.
    Own,
    /// They are left for the next agent to own: for a process that ends after its commit.
    Leave,
    /// Everybody may change them, as on kernels before 6.9.
    Share,
}

/// Who is to own the tables, and whether the kernel can have them owned.
#[derive(Debug)]
pub(super) struct OwnershipPolicy {
    pub(super) wanted: Ownership,
    /// `None`: it has not been tried yet.
    pub(super) kernel_can: Option<bool>,
}

impl OwnershipPolicy {
    /// True if new tables are made as owned ones, as far as is known.
    pub(super) fn creates_owned_tables(&self) -> bool {
        self.wanted != Ownership::Share && self.kernel_can != Some(false)
    }

    /// True if tables that no process owns become ours.
    pub(super) fn takes_over(&self) -> bool {
        self.wanted == Ownership::Own
    }
}

/// How a table is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableOwner {
    /// By us.
    Ours,
    /// By nobody at the moment.
    Orphan,
    /// By nobody ever: its flags cannot be set later.
    Shared,
}

impl TableOwner {
    /// What the flags and the owner of a table mean to the socket with that port. `None` for flags
    /// that we do not set.
    pub(super) fn of(
        family: TableFamily,
        flags: u32,
        owner: Option<u32>,
        port: u32,
    ) -> Result<Option<TableOwner>, Error> {
        match (owner, flags) {
            (Some(owner), OWNED) if owner == port => Ok(Some(TableOwner::Ours)),
            (Some(port), _) => Err(Error::Owned { family, table: TABLE.to_owned(), port }),
            // The kernel takes the owner's flag away when it goes.
            (None, TABLE_PERSIST) => Ok(Some(TableOwner::Orphan)),
            (None, 0) => Ok(Some(TableOwner::Shared)),
            (None, _) => Ok(None),
        }
    }
}

/// True if the kernel refused a table of ours because of flags that it does not know.
pub(super) fn is_about_flags(refusal: &Refusal) -> bool {
    let about_table = refusal.table == TABLE && refusal.object.is_empty();
    about_table && matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// True if the kernel lets tables be owned and outlive their owner. It is asked by a transaction
/// that fails in any case, since it deletes a table that there is not. That takes some milliseconds
/// (the kernel waits for an RCU grace period), so it is done only before tables are replaced; where
/// there are none, the first transaction finds out.
pub(super) fn can_own(kernel: &mut dyn Kernel) -> Result<bool, Error> {
    const PROBE: &str = "shunt-probe";
    const NOWHERE: &str = "shunt-probe-nowhere";
    let mut batch = Batch::new(None);
    batch.add_table(TableFamily::Ip, PROBE, OWNED, PROBE);
    batch.delete_table(TableFamily::Ip, NOWHERE);
    match kernel.commit(&batch.finish()) {
        Err(Error::Refused(refusals)) => Ok(refusals.iter().all(|refusal| {
            let unknown = matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EINVAL);
            refusal.table != PROBE || !unknown
        })),
        Err(error) => Err(error),
        Ok(()) => Err(Error::Malformed("success for the deletion of a missing table")),
    }
}

/// Creates a table with its sets.
pub(super) fn create_table(family: Family, flags: u32, batch: &mut Batch) {
    let table = table_family(family);
    batch.add_table(table, TABLE, flags, LAYOUT_COMMENT);
    for set in Set::ALL {
        batch.add_set(table, TABLE, set.name(), &set_type(family, set));
    }
}
