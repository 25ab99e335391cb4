//! Listings that tolerate concurrent commits of other processes.

use nfnetlink::nft::{DumpedElement, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Set, TABLE};

use super::codec::table_family;

/// The number of attempts at a listing that commits of other processes interrupt.
const ATTEMPTS: usize = 20;

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

/// Repeats a listing that must be complete until no other process commits meanwhile.
pub(super) fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Interrupted) => {}
            other => return other,
        }
    }
    attempt()
}
