//! The agent of another version, and this one: each takes the node over from the other.
//!
//! `SHUNT_PREVIOUS` names the folder of the other version, mostly the previous release; `cargo xtask upgrade`
//! makes it and runs this. Without it, the other version is this build with another version and layout.

mod commands;
mod manifests;
mod settings;
mod tables;
mod traffic;
mod world;

use std::process::ExitCode;

use shunt_fake_apiserver::{Alone, run_trials, trial};

/// The tests of agents.
const TESTS: [Alone; 10] = [
    ("traffic::replaced", traffic::replaced),
    ("traffic::unchanged_layout", traffic::unchanged_layout),
    ("traffic::affinity", traffic::affinity),
    ("tables::owned", tables::owned),
    ("tables::remaining", tables::remaining),
    ("tables::cleanup", tables::cleanup),
    ("settings::unknown_fields", settings::unknown_fields),
    ("settings::node_ports_on_localhost", settings::node_ports_on_localhost),
    ("commands::of_the_current_version", commands::of_the_current_version),
    ("commands::of_the_previous_version", commands::of_the_previous_version),
];

fn main() -> ExitCode {
    let of_agents = TESTS.iter().map(|&(name, body)| trial(name, Ok(()), body));
    let mut tests: Vec<_> = of_agents.collect();
    tests.push(trial("manifests::applied", manifests::ready(), manifests::applied));
    run_trials(3, tests)
}
