//! What runs inside the virtual machines of `cargo xtask vm-test`. One program with three names:
//!
//! - `init`: the first process. It does what the plan says that came with the machine, reports over
//!   the second serial port, and switches the machine off.
//! - `modprobe`: what the kernel calls to load a module, as on any node.
//! - `shunt-vm`: the tests that need a kernel and a first network namespace of their own, and the
//!   probes of what the kernel can do.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of the testbed: what it prints is what it is for"
)]

mod features;
mod init;
mod ipvs;
mod modprobe;
mod node;
mod nodes;
mod report;
mod runner;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> ExitCode {
    if std::process::id() == 1 {
        init::main();
    }
    let mut arguments = env::args();
    let own_name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    match run(&own_name, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{own_name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(own_name: &str, arguments: &[String]) -> Result<()> {
    if Path::new(own_name).ends_with("modprobe") {
        return modprobe::main(arguments);
    }
    match arguments.split_first() {
        Some((group, filters)) if group == "bare" => {
            let tests = [&node::TESTS[..], &features::TESTS, &nodes::TESTS, &ipvs::TESTS];
            runner::run(&tests.concat(), filters)
        }
        Some((group, filters)) if group == "without-ipv6" => {
            runner::run(&node::TESTS_WITHOUT_IPV6, filters)
        }
        Some((group, filters)) if group == "after-boot" => {
            runner::run(&node::TESTS_AFTER_BOOT, filters)
        }
        _ => bail!("this is for the virtual machines of `cargo xtask vm-test`"),
    }
}
