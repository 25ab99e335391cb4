//! Files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The path of a file or folder.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}

/// The text of a file.
pub fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository(path)).with_context(|| format!("cannot read {path}"))
}
