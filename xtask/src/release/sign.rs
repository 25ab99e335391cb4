//! Signatures of cosign, with a key from the environment.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::SUMS;
use super::sysroot;
use crate::command::{command, run, stdout};

/// The variable with the private key, as cosign itself names it; `COSIGN_PASSWORD` has its password.
pub(super) const KEY: &str = "COSIGN_PRIVATE_KEY";

/// Signs the list of digests, if there is a key, and verifies the signature. True if it is signed.
pub(super) fn sign(folder: &Path, mirror: Option<&str>) -> Result<bool> {
    if env::var_os(KEY).is_none_or(|key| key.is_empty()) {
        return Ok(false);
    }
    let cosign = cosign(mirror)?;
    let key = format!("--key=env://{KEY}");
    let sums = folder.join(SUMS);
    let signature = folder.join(format!("{SUMS}.sig"));
    let public = folder.join("cosign.pub");
    // A log that everyone can read is for keys that nobody keeps.
    let mut sign = command(&cosign);
    sign.args(["sign-blob", "--yes", "--tlog-upload=false", &key, "--output-signature"]);
    stdout(sign.arg(&signature).arg(&sums)).context("cannot sign")?;
    stdout(command(&cosign).args(["public-key", &key, "--outfile"]).arg(&public))?;
    let mut verify = command(&cosign);
    verify.args(["verify-blob", "--insecure-ignore-tlog=true", "--key"]).arg(&public);
    run(verify.arg("--signature").arg(&signature).arg(&sums))?;
    Ok(true)
}

/// Debian's cosign, whatever this machine has: cosign 3 signs without a log only with flags that
/// cosign 2 does not know. The release workflow uses the same file.
fn cosign(mirror: Option<&str>) -> Result<PathBuf> {
    Ok(sysroot::tool("cosign", mirror)?.join("usr/bin/cosign"))
}
