//! `cargo xtask arm64`: tests that need no kernel, built for another architecture and run by QEMU.

use anyhow::{Context as _, Result};
use clap::Args;

use super::architecture::Architecture;
use super::build;
use super::sysroot::Sysroot;
use crate::command::{cargo, run as run_command};
use crate::packages::{Installer, Purpose};

/// The tests: packages, and which of their targets.
const TESTS: [&str; 6] = [
    "--package=shunt-core",
    "--package=shunt-fake-nftables",
    "--package=nfnetlink",
    "--package=shunt",
    "--lib",
    "--test=sequences",
];

/// Tests of these packages that ask the kernel: QEMU does not pass on all families of netlink.
const OF_THE_KERNEL: [&str; 4] = [
    "route::neighbour::tests::listing_gives_the_same_answer_as_the_query",
    "socket::tests::answers_to_abandoned_requests_are_skipped",
    "socket::tests::port_numbers_are_given_once",
    "trace::table::tests::plain_table_of_a_running_command_stays",
];

/// Arguments of `cargo xtask arm64`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Where folders `debian` and `debian-security` are, with the C libraries
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,

    /// Handed to the test programs
    #[arg(last = true)]
    args: Vec<String>,
}

/// Builds the tests for arm64 and runs them.
pub(crate) fn run(installer: &Installer, arguments: &Arguments) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Release])?;
    let architecture = Architecture::Arm64;
    let sysroot = Sysroot::prepare(architecture, arguments.mirror.as_deref())?;
    let mut tests = cargo();
    tests.args(["test", "--locked", "--no-fail-fast"]).args(TESTS);
    build::environment(&mut tests, architecture, &sysroot)?;
    if let Some(emulator) = architecture.emulator() {
        let target = architecture.target().replace('-', "_").to_uppercase();
        tests.env(format!("CARGO_TARGET_{target}_RUNNER"), emulator);
    }
    tests.arg("--").args(OF_THE_KERNEL.map(|name| format!("--skip={name}")));
    run_command(tests.args(&arguments.args)).context("a test fails on arm64")
}
