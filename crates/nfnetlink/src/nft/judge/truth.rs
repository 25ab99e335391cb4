//! Three-valued logic.

use std::ops::{BitAnd, BitOr, Not};

/// Whether a condition holds, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truth {
    Yes,
    No,
    Unknown,
}

impl Truth {
    /// Returns the opposite if `inverted`.
    pub(super) fn inverted(self, inverted: bool) -> Truth {
        if inverted { !self } else { self }
    }
}

impl From<bool> for Truth {
    fn from(known: bool) -> Truth {
        if known { Truth::Yes } else { Truth::No }
    }
}

impl Not for Truth {
    type Output = Truth;

    fn not(self) -> Truth {
        match self {
            Truth::Yes => Truth::No,
            Truth::No => Truth::Yes,
            Truth::Unknown => Truth::Unknown,
        }
    }
}

impl BitAnd for Truth {
    type Output = Truth;

    fn bitand(self, other: Truth) -> Truth {
        match (self, other) {
            (Truth::No, _) | (_, Truth::No) => Truth::No,
            (Truth::Yes, Truth::Yes) => Truth::Yes,
            _ => Truth::Unknown,
        }
    }
}

impl BitOr for Truth {
    type Output = Truth;

    fn bitor(self, other: Truth) -> Truth {
        !(!self & !other)
    }
}

#[cfg(test)]
mod tests {
    use super::Truth::{No, Unknown, Yes};

    #[test]
    fn unknown_decides_nothing() {
        assert_eq!((Yes & Unknown, No & Unknown), (Unknown, No));
        assert_eq!((Yes | Unknown, No | Unknown), (Yes, Unknown));
        assert_eq!((!Yes, !Unknown), (No, Unknown));
        assert_eq!((Yes.inverted(true), Unknown.inverted(true)), (No, Unknown));
    }
}
