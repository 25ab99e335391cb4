//! A fingerprint of all elements of both tables.
//!
//! It is the sum of the hashes of all elements: their order has no influence, duplicates have. One
//! listing is enough to compare the kernel with the record, without decoding elements into
//! frontends. The same holds for the comparison of two listings.

use std::hash::BuildHasher as _;
use std::sync::LazyLock;

use foldhash::quality::RandomState;
use nfnetlink::nft::{ElementData, Error, Kernel};
use shunt_core::model::Family;
use shunt_core::plan::Set;

use super::codec::{ChainNames, encoded};
use super::listing::list;
use super::record::KernelRecord;

/// A hasher with a random seed of this process, so that no input can provoke collisions.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// A sum of the hashes of elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    /// Adds an encoded element, with the end of its key if it is a range.
    pub(super) fn add(
        &mut self,
        (family, set): (Family, Set),
        key: (&[u8], Option<&[u8]>),
        data: Option<ElementData<'_>>,
        comment: Option<&str>,
    ) {
        let element = (family as u8, set as u8, key, data, comment);
        self.0 = self.0.wrapping_add(HASHER.hash_one(element));
    }

    /// Returns the fingerprint of the elements of the record.
    pub(super) fn recorded(record: &KernelRecord) -> Fingerprint {
        let mut fingerprint = Fingerprint::default();
        let mut names = ChainNames::default();
        record.elements(&mut |element| {
            let set = (element.key.family(), element.set);
            encoded(element, &mut names, |key, end, data, comment| {
                fingerprint.add(set, (key, end), data, comment);
            });
        });
        fingerprint
    }

    /// Returns the fingerprint of the elements that the kernel lists, of the tables that the record
    /// has. Elements that rules add do not count.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(super) fn listed(
        kernel: &mut dyn Kernel,
        record: &KernelRecord,
    ) -> Result<Fingerprint, Error> {
        let mut fingerprint = Fingerprint::default();
        for family in Family::ALL.into_iter().filter(|family| record.owner(*family).is_some()) {
            for set in Set::ALL.into_iter().filter(|set| !set.is_dynamic()) {
                list(kernel, family, set, &mut |element| {
                    let key = (element.key, element.key_end);
                    fingerprint.add((family, set), key, element.data, element.comment);
                })?;
            }
        }
        Ok(fingerprint)
    }
}
