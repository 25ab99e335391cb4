//! Listings that tolerate concurrent commits of other processes.

use nfnetlink::nft::{DumpedElement, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Set, TABLE};

use super::codec::table_family;

/// The number of listings of a set that commits of other processes interrupt.
const ATTEMPTS: usize = 3;

/// Lists a set. Returns true if another process has committed meanwhile, nearly always to a table
/// of its own.
pub(super) fn list(
    kernel: &mut dyn Kernel,
    family: Family,
    set: Set,
    each: &mut dyn FnMut(DumpedElement<'_>),
) -> Result<bool, Error> {
    match kernel.elements(table_family(family), TABLE, set.name(), each) {
        Ok(()) => Ok(false),
        Err(Error::Interrupted) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Lists a set by its name, again if commits of other processes interrupt it: `each` may get an
/// element more than once. The last listing counts.
pub(super) fn list_again(
    kernel: &mut dyn Kernel,
    family: Family,
    set: &str,
    each: &mut dyn FnMut(DumpedElement<'_>),
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        match kernel.elements(table_family(family), TABLE, set, each) {
            Err(Error::Interrupted) => {}
            result => return result,
        }
    }
    Ok(())
}
