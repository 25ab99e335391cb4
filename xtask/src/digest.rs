//! SHA-256, as hexadecimal digits.

use sha2::{Digest as _, Sha256};

/// The digest of these bytes.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_digest_of_nothing_is_the_known_one() {
    let known = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(sha256(b""), known);
}
