//! Bytes of which some bits are unknown, and the registers that hold them.

use super::truth::Truth;
use crate::nft::Register;

/// The size of all registers, in bytes.
const REGISTERS: usize = Register::COUNT * REGISTER;

/// The size of a register, in bytes. A value fills whole registers.
const REGISTER: usize = 4;

/// Bytes of which some bits may be unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bits {
    /// The bytes; unknown bits are 0.
    value: Vec<u8>,
    /// The known bits. As long as `value`.
    known: Vec<u8>,
}

impl Bits {
    pub(super) fn known(value: impl Into<Vec<u8>>) -> Bits {
        let value = value.into();
        Bits { known: vec![0xff; value.len()], value }
    }

    pub(super) fn unknown(length: usize) -> Bits {
        Bits { value: vec![0; length], known: vec![0; length] }
    }

    /// Returns bytes of which only the bits in `known` are known. `known` is as long as `value`.
    pub(super) fn partial(value: &[u8], known: &[u8]) -> Bits {
        let value = value.iter().zip(known).map(|(value, known)| value & known).collect();
        Bits { value, known: known.to_vec() }
    }

    pub(super) fn len(&self) -> usize {
        self.value.len()
    }

    /// Returns the bytes if all bits are known.
    pub(super) fn exact(&self) -> Option<&[u8]> {
        self.known.iter().all(|known| *known == 0xff).then_some(&self.value)
    }

    /// Returns the bytes with unknown bits as 0, and the known bits.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        (&self.value, &self.known)
    }

    /// Returns `length` bytes from `offset`. Bytes after the end are unknown.
    pub(super) fn slice(&self, offset: usize, length: usize) -> Bits {
        let part = |of: &[u8]| {
            let mut part: Vec<u8> = of.iter().skip(offset).take(length).copied().collect();
            part.resize(length, 0);
            part
        };
        Bits { value: part(&self.value), known: part(&self.known) }
    }

    /// Overwrites the bytes from `offset`. Bytes after the end are lost.
    pub(super) fn write(&mut self, offset: usize, bits: &Bits) {
        let copy = |to: &mut [u8], from: &[u8]| {
            for (to, from) in to.iter_mut().skip(offset).zip(from) {
                *to = *from;
            }
        };
        copy(&mut self.value, &bits.value);
        copy(&mut self.known, &bits.known);
    }

    /// Returns the bits that are known and equal in both.
    pub(super) fn join(&self, other: &Bits) -> Bits {
        let both = self.parts_with(other);
        let known: Vec<u8> =
            both.map(|(a, known_a, b, known_b)| known_a & known_b & !(a ^ b)).collect();
        Bits::partial(&self.value, &known)
    }

    fn parts_with<'a>(&'a self, other: &'a Bits) -> impl Iterator<Item = (u8, u8, u8, u8)> + 'a {
        let ours = self.value.iter().zip(&self.known);
        let theirs = other.value.iter().zip(&other.known);
        ours.zip(theirs).map(|((a, known_a), (b, known_b))| (*a, *known_a, *b, *known_b))
    }

    /// Returns `(self & mask) ^ xor`. Missing bytes of the two are 0.
    pub(super) fn masked(&self, mask: &[u8], xor: &[u8]) -> Bits {
        let at = |bytes: &[u8], index: usize| bytes.get(index).copied().unwrap_or(0);
        let value: Vec<u8> =
            self.value.iter().enumerate().map(|(i, it)| (it & at(mask, i)) ^ at(xor, i)).collect();
        let known: Vec<u8> =
            self.known.iter().enumerate().map(|(i, it)| it | !at(mask, i)).collect();
        Bits::partial(&value, &known)
    }

    /// Returns the bytes with each unit of `size` bytes reversed.
    pub(super) fn swapped(&self, size: usize) -> Bits {
        let swap = |bytes: &[u8]| {
            let units = bytes.chunks(size.max(1));
            units.flat_map(|unit| unit.iter().rev().copied()).collect::<Vec<u8>>()
        };
        Bits { value: swap(&self.value), known: swap(&self.known) }
    }

    /// Returns a number in host order shifted to the left or right. `None` if this is no number of
    /// four bytes.
    pub(super) fn shifted(&self, left: bool, by: u32) -> Option<Bits> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
        let (value, unknown) = (number(&self.value)?, !number(&self.known)?);
        let shift = |it: u32| if left { it.checked_shl(by) } else { it.checked_shr(by) };
        let (value, unknown) = (shift(value).unwrap_or(0), shift(unknown).unwrap_or(0));
        Some(Bits::partial(&value.to_ne_bytes(), &(!unknown).to_ne_bytes()))
    }

    /// Compares with bytes of the same length.
    pub(super) fn equals(&self, bytes: &[u8]) -> Truth {
        let mut different = self.value.iter().zip(&self.known).zip(bytes);
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
        let largest: Vec<u8> = self.value.iter().zip(&self.known).map(|(v, k)| v | !k).collect();
        if largest.as_slice() < bytes {
            Truth::Yes
        } else if self.value.as_slice() >= bytes {
            Truth::No
        } else {
            Truth::Unknown
        }
    }

    /// Compares with bytes of the same length, as a number in network order.
    pub(super) fn is_greater(&self, bytes: &[u8]) -> Truth {
        let complement: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        let value: Vec<u8> = self.value.iter().map(|byte| !byte).collect();
        Bits::partial(&value, &self.known).is_less(&complement)
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
        assert_eq!(bits.shifted(true, 1), None);
        assert_eq!(Bits::known([1; 4]).shifted(false, 99), Some(Bits::known([0; 4])));
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
