//! Runs tests one after the other, in their order, and says the results as Rust's own harness does.
//! That one has no order and runs several at once; here the first test has to find the machine as it
//! was booted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, ensure};

/// A test: its name, and what it does.
pub(crate) type Test = (&'static str, fn() -> Result<()>);

/// Runs those of the tests whose names contain one of `filters`, if there are any.
pub(crate) fn run(tests: &[Test], filters: &[String]) -> Result<()> {
    let filters: Vec<&str> =
        filters.iter().map(String::as_str).filter(|filter| !filter.starts_with("--")).collect();
    let selected: Vec<&Test> = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|it| name.contains(it)))
        .collect();
    println!("running {} tests", selected.len());
    let mut failed = 0;
    for (name, test) in selected {
        // A failed assertion prints itself.
        match catch_unwind(AssertUnwindSafe(test)) {
            Ok(Ok(())) => println!("test {name} ... ok"),
            outcome => {
                if let Ok(Err(error)) = outcome {
                    eprintln!("{error:?}");
                }
                println!("test {name} ... FAILED");
                failed += 1;
            }
        }
    }
    ensure!(failed == 0, "{failed} tests failed");
    Ok(())
}
