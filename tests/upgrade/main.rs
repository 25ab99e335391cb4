//! The agent of another version, mostly the previous release, and this one: each takes the node over
//! from the other.
//!
//! `SHUNT_PREVIOUS` names the folder of the other version; `cargo xtask upgrade` makes it and runs this.

mod commands;
mod localhost;
mod manifests;
mod settings;
mod tables;
mod traffic;
mod world;

use std::process::ExitCode;

use shunt_fake_apiserver::{Alone, run_trials, trial};

use world::previous;

/// The tests of agents.
const TESTS: [Alone; 13] = [
    ("traffic::terminated", traffic::terminated),
    ("traffic::killed", traffic::killed),
    ("traffic::terminated_before_one_that_waits", traffic::terminated_before_one_that_waits),
    ("traffic::killed_before_one_that_waits", traffic::killed_before_one_that_waits),
    ("traffic::affinity", traffic::affinity),
    ("tables::owned", tables::owned),
    ("tables::remaining", tables::remaining),
    ("tables::cleanup", tables::cleanup),
    ("tables::cleanup_beside_an_agent", tables::cleanup_beside_an_agent),
    ("settings::unknown_fields", settings::unknown_fields),
    ("localhost::node_ports", localhost::node_ports),
    ("commands::of_the_current_version", commands::of_the_current_version),
    ("commands::of_the_previous_version", commands::of_the_previous_version),
];

fn main() -> ExitCode {
    let with_agent = |&(name, body): &Alone| trial(name, previous().map(drop), body);
    let mut tests: Vec<_> = TESTS.iter().map(with_agent).collect();
    tests.push(trial("manifests::applied", manifests::ready(), manifests::applied));
    run_trials(1, tests)
}
