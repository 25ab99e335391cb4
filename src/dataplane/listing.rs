//! Lists what the kernel has, whatever other processes commit meanwhile.

use nfnetlink::nft::{DumpedElement, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::{Set, TABLE};

use super::codec::table_family;

/// How often a listing is tried again because the rules changed under it.
const ATTEMPTS: usize = 20;

/// Lists a set. True if another process has committed meanwhile. That is nearly always to a table of
/// its own, and changes nothing here.
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

/// Repeats a listing that must be whole until no other process commits meanwhile.
pub(super) fn retried<T>(mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::Interrupted) => {}
            other => return other,
        }
    }
    attempt()
}
