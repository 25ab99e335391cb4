//! Bytes of which some bits are unknown, and the registers that hold them.

use super::truth::Truth;
use crate::nft::Register;

/// The size of all registers, in bytes.
const REGISTERS: usize = Register::COUNT * REGISTER;

/// The size of a register, in bytes. A value fills whole registers.
const REGISTER: usize = 4;

/// Bytes of which some bits may be unknown: each with its known bits. Unknown bits are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bits(Vec<(u8, u8)>);

impl Bits {
    pub(super) fn known(value: impl Into<Vec<u8>>) -> Bits {
        Bits(value.into().into_iter().map(|byte| (byte, 0xff)).collect())
    }

    pub(super) fn unknown(length: usize) -> Bits {
        Bits(vec![(0, 0); length])
    }

    /// Returns bytes of which only the bits in `known` are known. `known` is as long as `value`.
    pub(super) fn partial(value: &[u8], known: &[u8]) -> Bits {
        Bits(value.iter().zip(known).map(|(value, known)| (value & known, *known)).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes if all bits are known.
    pub(super) fn exact(&self) -> Option<Vec<u8>> {
        self.0.iter().map(|(value, known)| (*known == 0xff).then_some(*value)).collect()
    }

    /// Returns true if nothing is known.
    pub(super) fn is_unknown(&self) -> bool {
        self.0.iter().all(|(_, known)| *known == 0)
    }

    /// Returns a number in host order, and its known bits; `None` if this is no number of four bytes.
    pub(super) fn number(&self) -> Option<(u32, u32)> {
        let [(a, ka), (b, kb), (c, kc), (d, kd)] = *self.0 else { return None };
        Some((u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([ka, kb, kc, kd])))
    }

    /// Returns `length` bytes from `offset`. Bytes after the end are unknown.
    pub(super) fn slice(&self, offset: usize, length: usize) -> Bits {
        let mut part: Vec<_> = self.0.iter().skip(offset).take(length).copied().collect();
        part.resize(length, (0, 0));
        Bits(part)
    }

    /// Overwrites the bytes from `offset`. Bytes after the end are lost.
    pub(super) fn write(&mut self, offset: usize, bits: &Bits) {
        for (to, from) in self.0.iter_mut().skip(offset).zip(&bits.0) {
            *to = *from;
        }
    }

    /// Returns the bits that are known and equal in both.
    pub(super) fn join(&self, other: &Bits) -> Bits {
        let both = self.0.iter().zip(&other.0).map(|((a, known_a), (b, known_b))| {
            let known = known_a & known_b & !(a ^ b);
            (a & known, known)
        });
        Bits(both.collect())
    }

    /// Returns `(self & mask) ^ xor`. Missing bytes of the two are 0.
    pub(super) fn masked(&self, mask: &[u8], xor: &[u8]) -> Bits {
        let at = |bytes: &[u8], index: usize| bytes.get(index).copied().unwrap_or(0);
        let changed = self.0.iter().enumerate().map(|(index, (value, known))| {
            let known = known | !at(mask, index);
            (((value & at(mask, index)) ^ at(xor, index)) & known, known)
        });
        Bits(changed.collect())
    }

    /// Returns the bytes with each unit of `size` bytes reversed.
    pub(super) fn swapped(&self, size: usize) -> Bits {
        Bits(self.0.chunks(size.max(1)).flat_map(|unit| unit.iter().rev().copied()).collect())
    }

    /// Returns whether one of these bits of a number in host order is set.
    pub(super) fn has_any(&self, bits: u32) -> Truth {
        !self.masked(&bits.to_ne_bytes(), &[]).equals(&[0; 4])
    }

    /// Compares with bytes of the same length.
    pub(super) fn equals(&self, bytes: &[u8]) -> Truth {
        let mut different = self.0.iter().zip(bytes);
        if bytes.len() != self.len() {
            return Truth::Unknown;
        }
        if different.any(|((value, known), other)| value ^ (other & known) != 0) {
            return Truth::No;
        }
        if self.exact().is_some() { Truth::Yes } else { Truth::Unknown }
    }

    /// Compares with bytes of the same length, as a number in network order.
    pub(super) fn is_less(&self, bytes: &[u8]) -> Truth {
        if bytes.len() != self.len() {
            return Truth::Unknown;
        }
        let smallest = self.0.iter().map(|(value, _)| *value);
        let largest = self.0.iter().map(|(value, known)| value | !known);
        if largest.lt(bytes.iter().copied()) {
            Truth::Yes
        } else if smallest.ge(bytes.iter().copied()) {
            Truth::No
        } else {
            Truth::Unknown
        }
    }

    /// Compares with bytes of the same length, as a number in network order.
    pub(super) fn is_greater(&self, bytes: &[u8]) -> Truth {
        let complement: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let opposite = self.0.iter().map(|(value, known)| (!value & known, *known));
        Bits(opposite.collect()).is_less(&complement)
    }

    /// Compares with two bounds, which both belong to the range.
    pub(super) fn is_between(&self, from: &[u8], to: &[u8]) -> Truth {
        !self.is_less(from) & !self.is_greater(to)
    }
}

/// The registers of nf_tables, without that of the verdict. All bits are unknown at first.
#[derive(Debug, Clone)]
pub(super) struct Registers(Bits);

impl Registers {
    pub(super) fn new() -> Registers {
        Registers(Bits::unknown(REGISTERS))
    }

    /// Returns bytes of a register and those after it.
    pub(super) fn load(&self, register: Register, length: usize) -> Bits {
        self.0.slice(register.index() * REGISTER, length.min(REGISTERS))
    }

    /// Stores bytes, and zeros in the rest of the last register.
    pub(super) fn store(&mut self, register: Register, bits: &Bits) {
        let offset = register.index() * REGISTER;
        self.0.write(offset, bits);
        let padding = bits.len().next_multiple_of(REGISTER) - bits.len();
        self.0.write(offset + bits.len(), &Bits::known(vec![0; padding]));
    }
}

#[cfg(test)]
mod tests {
    use super::Truth::{No, Unknown, Yes};
    use super::*;

    #[test]
    fn other_lengths_decide_nothing_and_take_no_memory() {
        let bits = Bits::known([1, 2]);
        let compared = [bits.equals(&[1]), bits.is_less(&[9]), bits.is_greater(&[0])];
        assert_eq!(compared, [Unknown; 3]);
        assert_eq!(Registers::new().load(Register(0), usize::MAX).len(), REGISTERS);
    }

    #[test]
    fn comparisons_agree_with_those_of_all_values() {
        // All bytes with all known bits, against every bound.
        for known in [0x00, 0x0f, 0xf0, 0x81, 0xff] {
            for value in (0..=255).filter(|value| value & !known == 0) {
                let bits = Bits::partial(&[value], &[known]);
                let values: Vec<u8> = (0..=255).filter(|it| it & known == value).collect();
                for bound in (0..=255).step_by(5) {
                    let expected =
                        |is: &dyn Fn(u8) -> bool| match values.iter().filter(|it| is(**it)).count()
                        {
                            0 => No,
                            count if count == values.len() => Yes,
                            _ => Unknown,
                        };
                    assert_eq!(bits.is_less(&[bound]), expected(&|it| it < bound));
                    assert_eq!(bits.is_greater(&[bound]), expected(&|it| it > bound));
                    assert_eq!(bits.equals(&[bound]), expected(&|it| it == bound));
                }
            }
        }
    }
}
