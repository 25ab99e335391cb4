//! The types of plain scalars by the rules of go-yaml v2, which Kubernetes uses through
//! `sigs.k8s.io/yaml`. These are YAML 1.1, with the octal numbers of 1.2. Times and base-60 numbers
//! are text.

use std::borrow::Cow;

/// Returns the typed value of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Meaning<'t> {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'t str),
}

pub(super) fn meaning(text: &str) -> Meaning<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Meaning::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Meaning::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Meaning::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Meaning::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Meaning::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Meaning::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return Meaning::Text(text);
    }
    let digits: Cow<'_, str> = match text.contains('_') && !text.starts_with('.') {
        true => text.replace('_', "").into(),
        false => text.into(),
    };
    if let Some(number) = integer(&digits) {
        return number;
    }
    // Rust would also accept words such as `+inf`.
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    match digits.parse::<f64>() {
        // In JSON, 1.0 and 1e2 are whole numbers.
        Ok(number) if is_decimal && number.fract() == 0.0 && number.abs() < 9.0e18 => {
            Meaning::Signed(number as i64)
        }
        Ok(number) if is_decimal && number.is_finite() => Meaning::Float(number),
        _ => Meaning::Text(text),
    }
}

/// Parses a whole number with the prefixes of Go: `0x`, `0b`, `0o`, and `0` for octal.
fn integer(text: &str) -> Option<Meaning<'static>> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // Rust would accept another sign here.
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        0_i64.checked_sub_unsigned(number).map(Meaning::Signed)
    } else {
        Some(Meaning::Unsigned(number))
    }
}

/// Returns a plain scalar in its form as a key: `yes` is the key `true`, `010` the key `8`. None
/// for null, which is no key.
pub(super) fn key(text: Cow<'_, str>) -> Option<Cow<'_, str>> {
    match meaning(&text) {
        Meaning::Null => None,
        Meaning::Bool(value) => Some(if value { "true".into() } else { "false".into() }),
        Meaning::Signed(number) => Some(number.to_string().into()),
        Meaning::Unsigned(number) => Some(number.to_string().into()),
        Meaning::Float(number) => Some((number as f32).to_string().into()),
        Meaning::Text(_) => Some(text),
    }
}
