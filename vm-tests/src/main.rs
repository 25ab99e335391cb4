//! The tests that need a machine of their own, in the virtual machines of `cargo xtask vm-test`.
//!
//! Rust's own harness has no order and runs several tests at once; here the first test has to find the
//! machine as it was booted.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of the testbed: what it prints is what it is for"
)]

mod ipvs;
mod node;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, bail, ensure};

/// A test: its name, and what it does.
type Test = (&'static str, fn() -> Result<()>);

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let tests = match arguments.first().map(String::as_str) {
        Some("bare") => [&node::TESTS[..], &ipvs::TESTS].concat(),
        Some("without-ipv6") => node::TESTS_WITHOUT_IPV6.to_vec(),
        Some("after-boot") => node::TESTS_AFTER_BOOT.to_vec(),
        _ => bail!("run this through `cargo xtask vm-test`"),
    };
    let filter = arguments.get(1).map_or("", String::as_str);
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.iter().filter(|test| test.0.contains(filter)) {
        // A failed assertion prints itself.
        match catch_unwind(AssertUnwindSafe(test)) {
            Ok(Ok(())) => {
                println!("test {name} ... ok");
                passed += 1;
                continue;
            }
            Ok(Err(error)) => eprintln!("{error:?}"),
            Err(_) => {}
        }
        println!("test {name} ... FAILED");
        failed += 1;
    }
    ensure!(failed == 0, "{failed} tests failed");
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored");
    Ok(())
}
