//! The types of plain scalars by the rules of go-yaml v2, which Kubernetes uses through
//! `sigs.k8s.io/yaml`. These are YAML 1.1, with the octal numbers of 1.2. Times and base-60 numbers
//! are text.

use std::borrow::Cow;

use serde_json::Value;

/// Returns the typed value of a scalar; `None` for a number that JSON does not have.
pub(super) fn meaning(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Some(true.into());
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Some(false.into());
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return None,
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return Some(text.into());
    }
    let digits: Cow<'_, str> = match text.contains('_') && !text.starts_with('.') {
        true => text.replace('_', "").into(),
        false => text.into(),
    };
    if let Some(number) = integer(&digits) {
        return Some(number);
    }
    // Rust would also accept words such as `+inf`.
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    Some(match digits.parse::<f64>() {
        // In JSON, 1.0 and 1e2 are whole numbers.
        Ok(number) if is_decimal && number.fract() == 0.0 && number.abs() < 9.0e18 => {
            (number as i64).into()
        }
        Ok(number) if is_decimal && number.is_finite() => number.into(),
        _ => text.into(),
    })
}

/// Parses a whole number with the prefixes of Go: `0x`, `0b`, `0o`, and `0` for octal.
fn integer(text: &str) -> Option<Value> {
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
    if negative { 0_i64.checked_sub_unsigned(number).map(Value::from) } else { Some(number.into()) }
}

/// Returns a plain scalar in its form as a key: `yes` is the key `true`, `010` the key `8`. None
/// for null, which is no key.
pub(super) fn key(text: Cow<'_, str>) -> Option<Cow<'_, str>> {
    match meaning(&text) {
        Some(Value::Null) => None,
        Some(Value::String(_)) => Some(text),
        Some(Value::Number(number)) if number.is_f64() => {
            Some((number.as_f64()? as f32).to_string().into())
        }
        Some(value) => Some(value.to_string().into()),
        None => Some(text),
    }
}
