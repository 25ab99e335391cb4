//! Everything that is measured, in one run and one table: the agent beside kube-proxy.
//!
//! `cargo xtask bench`, or `cargo bench`; then sections and sizes as arguments, as in
//! `cargo xtask bench -- beside 1000x10`, and `--write-json FILE` for all figures with their units. Needs root: a user namespace may not raise a
//! socket's buffer far enough for the larger sizes. Every figure is a median of `n` measurements unless
//! it says otherwise; compare the ratios, machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    missing_docs,
    reason = "a benchmark prints its result and stops at the first surprise"
)]

mod beside;
mod failover;
mod figure;
mod objects;
mod path;
mod process;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use table::Table;

/// Services, and endpoints of each.
type Size = (u32, u32);

type Measure = fn(&mut Table, &[Size]);

/// What can be asked for, in order.
const SECTIONS: [(&str, Measure); 5] = [
    ("beside", beside::measure),
    ("shape", beside::shape::measure),
    ("churn", beside::churn::measure),
    ("path", path::measure),
    ("failover", failover::measure),
];

/// The middle one.
fn median<T: Copy + Default + Ord>(mut figures: Vec<T>) -> T {
    figures.sort_unstable();
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn main() {
    let mut sizes: Vec<Size> = Vec::new();
    let mut sections: Vec<String> = Vec::new();
    let mut json = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let size =
            argument.split_once('x').and_then(|(s, e)| Some((s.parse().ok()?, e.parse().ok()?)));
        match (argument.as_str(), size) {
            // From cargo.
            ("--bench", _) => {}
            ("--write-json", _) => json = Some(arguments.next().expect("a file after it")),
            (_, Some(size)) => sizes.push(size),
            (section, None) => {
                let known = SECTIONS.map(|(name, _)| name);
                assert!(known.contains(&section), "no section {section}: choose from {known:?}");
                sections.push(argument);
            }
        }
    }
    let mut table = Table::default();
    let mut failed = Vec::new();
    for (name, measure) in SECTIONS {
        if !sections.is_empty() && !sections.iter().any(|section| section == name) {
            continue;
        }
        println!("── {name}");
        table.begin_section(name);
        let started = Instant::now();
        // A section that fails must not cost the figures of the others. The table has its whole rows.
        let outcome = catch_unwind(AssertUnwindSafe(|| measure(&mut table, &sizes)));
        let took = started.elapsed();
        println!("── {name}: {:.0} s", took.as_secs_f64());
        match outcome {
            Ok(()) => table.record_duration(name, took),
            Err(_) => {
                table.forget_section();
                failed.push(name);
            }
        }
        if let Some(file) = &json {
            let rows = serde_json::to_string_pretty(table.rows()).expect("plain data");
            std::fs::write(file, rows).expect("a file for the figures");
        }
    }
    assert!(failed.is_empty(), "no figures for {failed:?}: see above");
}
