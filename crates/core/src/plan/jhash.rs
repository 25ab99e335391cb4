//! The kernel's choice of a slot by the hash of a source.

use std::net::IpAddr;

use super::HASH_SEED;

/// Returns the index below the count that `jhash ip saddr mod COUNT` gives (`nft_jhash_eval`).
#[must_use]
pub fn hash_index(source: IpAddr, count: u32) -> u32 {
    let octets = match source {
        IpAddr::V4(source) => source.octets().to_vec(),
        IpAddr::V6(source) => source.octets().to_vec(),
    };
    let (words, _) = octets.as_chunks::<4>();
    // `jhash` of `linux/jhash.h`, for keys of one word and of four.
    let start = 0xdead_beef_u32.wrapping_add(octets.len() as u32).wrapping_add(HASH_SEED);
    let (mut a, mut b, mut c) = (start, start, start);
    // The kernel reads these in its own byte order, and the last one in that of x86.
    if let [x, y, z, _] = words {
        a = a.wrapping_add(u32::from_ne_bytes(*x));
        b = b.wrapping_add(u32::from_ne_bytes(*y));
        c = c.wrapping_add(u32::from_ne_bytes(*z));
        for shifts in [[4, 6, 8], [16, 19, 4]] {
            a = a.wrapping_sub(c) ^ c.rotate_left(shifts[0]);
            c = c.wrapping_add(b);
            b = b.wrapping_sub(a) ^ a.rotate_left(shifts[1]);
            a = a.wrapping_add(c);
            c = c.wrapping_sub(b) ^ b.rotate_left(shifts[2]);
            b = b.wrapping_add(a);
        }
    }
    a = a.wrapping_add(words.last().map_or(0, |last| u32::from_le_bytes(*last)));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    let hash = (c ^ b).wrapping_sub(b.rotate_left(24));
    // `reciprocal_scale` of `linux/math.h`: below the count, which has 32 bits.
    ((u64::from(hash) * u64::from(count)) >> 32) as u32
}
