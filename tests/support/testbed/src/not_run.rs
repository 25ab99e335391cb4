//! Tests that cannot run because a program is missing, and how `cargo xtask` learns of them.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Context, Result};

/// Names the file to which each test program adds a line; `cargo xtask` prints its lines last.
const VARIABLE: &str = "SHUNT_TESTS_NOT_RUN";

/// Records that so many tests of a test program were not run, and why.
pub fn record_not_run(program: &str, tests: u64, reason: &str) -> Result<()> {
    let Some(file) = env::var_os(VARIABLE) else { return Ok(()) };
    let add = || {
        let mut opened = OpenOptions::new().create(true).append(true).open(&file)?;
        // In one system call: test programs can run at the same time.
        opened.write_all(format!("{tests} of {program}: {reason}\n").as_bytes())
    };
    add().with_context(|| format!("cannot write to {VARIABLE}={}", file.to_string_lossy()))
}
