//! The sizes of the sets: how many elements each can hold.
//!
//! With a size, the kernel allocates the buckets of a set at once. Without one, it resizes the hash
//! table again and again while a start adds its elements, which takes more than half of the time.
//! If a set becomes too small, the transaction that needs more makes all sets of the table anew.

use shunt_core::plan::Set;

/// The numbers of elements of one table's sets, by [`Set`].
pub(super) type Counts = [usize; Set::ALL.len()];

/// The sizes of one table's sets, by [`Set`]; `None` for a set without a limit.
pub(super) type Sizes = [Option<u32>; Set::ALL.len()];

/// The smallest size: the buckets take 8 bytes for each element, whether or not it exists.
const MIN_SIZE: usize = 512;
/// A new set has room for so many times its elements.
const HEADROOM: usize = 2;

/// Returns the sizes for the sets of a new table with so many elements.
pub(super) fn sizes_for(counts: &Counts) -> Sizes {
    let mut sizes = Sizes::default();
    for set in Set::ALL.into_iter().filter(|set| set.is_hashed()) {
        let room = counts[set as usize].saturating_mul(HEADROOM).max(MIN_SIZE);
        // A size that no `u32` expresses is none: the set grows as it needs.
        sizes[set as usize] =
            room.checked_next_power_of_two().and_then(|size| u32::try_from(size).ok());
    }
    sizes
}

/// Returns true if a set is too small for so many elements.
pub(super) fn are_too_small(sizes: &Sizes, counts: &Counts) -> bool {
    sizes.iter().zip(counts).any(|(size, count)| size.is_some_and(|size| *count > size as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_set_can_double_and_a_small_one_has_a_floor() {
        let mut counts = Counts::default();
        counts[Set::Endpoints as usize] = 100_000;
        counts[Set::ServiceIps as usize] = 512;
        let sizes = sizes_for(&counts);
        assert_eq!(sizes[Set::Endpoints as usize], Some(262_144));
        assert_eq!(sizes[Set::ServiceIps as usize], Some(1024));
        assert_eq!(sizes[Set::ClusterIps as usize], Some(512));
        // Packets add the entries of one, and the other is no hash table.
        assert_eq!(sizes[Set::Affinity as usize], None);
        assert_eq!(sizes[Set::AllowedSources as usize], None);

        assert!(!are_too_small(&sizes, &counts));
        counts[Set::Endpoints as usize] = 262_144;
        counts[Set::Affinity as usize] = 1 << 20;
        assert!(!are_too_small(&sizes, &counts));
        counts[Set::Endpoints as usize] += 1;
        assert!(are_too_small(&sizes, &counts));
        // Tables of an earlier agent have no sizes.
        assert!(!are_too_small(&Sizes::default(), &counts));
    }
}
