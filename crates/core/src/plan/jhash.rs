//! The kernel's choice of a slot by the hash of a source.

use std::net::IpAddr;

use super::HASH_SEED;

/// Returns the index below the count that `jhash ip saddr mod COUNT` gives (`nft_jhash_eval`).
#[must_use]
pub fn hash_index(source: IpAddr, count: u32) -> u32 {
    let hash = match source {
        IpAddr::V4(source) => jhash(&source.octets(), HASH_SEED),
        IpAddr::V6(source) => jhash(&source.octets(), HASH_SEED),
    };
    // `reciprocal_scale` of `linux/math.h`: below the count, which has 32 bits.
    ((u64::from(hash) * u64::from(count)) >> 32) as u32
}

/// Hashes bytes, whose number is a multiple of four, as `jhash` of `linux/jhash.h` does.
fn jhash(key: &[u8], seed: u32) -> u32 {
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let start = 0xdead_beef_u32.wrapping_add(length).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let (words, _) = key.as_chunks::<4>();
    let mut words = words;
    while let [x, y, z, rest @ ..] = words {
        if rest.is_empty() {
            break;
        }
        // The kernel reads these in its own byte order, and the last ones in that of x86.
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
        words = rest;
    }
    if words.is_empty() {
        return c;
    }
    let mut last = words.iter().map(|word| u32::from_le_bytes(*word));
    for register in [&mut a, &mut b, &mut c] {
        *register = register.wrapping_add(last.next().unwrap_or(0));
    }
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}
