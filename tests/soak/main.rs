//! The agent for minutes on end with everything that happens to a node at once: thousands of Services
//! that come, change and go, an API server that fails in all ways, agents that are killed and
//! replaced, other programs that write to nf_tables; and clients that connect all the time.
//!
//! `cargo xtask soak` runs it for ten minutes, `cargo test` for some seconds. At the end: not one
//! connection to a Service without changes has failed, the kernel holds exactly what a fresh start
//! would make, and the agent has not grown.

#![allow(clippy::print_stdout, reason = "what happened is what it is run for")]

mod agents;
mod churn;
mod cluster;
mod disturbances;
mod report;

use std::env;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use shunt_fake_apiserver::{Api, Case, standin_only};
use shunt_testbed::{Random, Traffic};

use crate::agents::Agents;
use crate::churn::churn;
use crate::cluster::Cluster;
use crate::disturbances::{Plan, disturb};
use crate::report::Report;

/// What `cargo test` runs.
const SHORT: Plan = Plan {
    lasts: Duration::from_secs(12),
    services: 200,
    changes_per_second: 40,
    step: Duration::from_millis(100),
};
/// What it does where there is more time.
const LONG: Plan = Plan {
    lasts: Duration::from_secs(600),
    services: 3_000,
    changes_per_second: 100,
    step: Duration::from_millis(900),
};

/// Between two questions of each flow.
const PAUSE: Duration = Duration::from_millis(4);
/// Questions of each flow after all has become calm.
const AFTERWARDS: usize = 50;

fn main() -> ExitCode {
    let cases: Vec<Case> = standin_only![nothing_is_lost_and_nothing_grows];
    shunt_fake_apiserver::run(&[("soak", cases)])
}

/// A number from the environment, which `cargo xtask soak` sets.
fn asked(variable: &str) -> Result<Option<u64>> {
    let value = env::var(variable).ok();
    let number = value.map(|value| value.parse().with_context(|| format!("{variable}={value:?}")));
    number.transpose()
}

fn plan() -> Result<Plan> {
    Ok(match asked("SHUNT_SOAK_SECONDS")? {
        None => SHORT,
        Some(seconds) => Plan { lasts: Duration::from_secs(seconds), ..LONG },
    })
}

fn nothing_is_lost_and_nothing_grows(api: Api) -> Result<()> {
    let plan = plan()?;
    let seed = shunt_testbed::seed(None)?;
    println!("soak: {} Services for {:?}, SHUNT_SEED={seed}", plan.services, plan.lasts);
    let cluster = Cluster::new(api, plan.services)?;
    let mut agents = Agents::start(&cluster)?;
    let traffic = Traffic::start(cluster.stable_flows(), PAUSE)?;
    traffic.more(1)?;

    let over = AtomicBool::new(false);
    let (changes, happened) = thread::scope(|scope| {
        let churning = scope.spawn(|| churn(&cluster, &plan, Random::new(seed), &over));
        let happened = disturb(&cluster, &mut agents, &plan, Random::new(seed.rotate_left(32)));
        over.store(true, Ordering::Relaxed);
        let changes = churning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        anyhow::Ok((changes?, happened?))
    })?;
    cluster.mark().context("the agent does not follow the API server at the end")?;
    traffic.more(AFTERWARDS)?;
    let growth = agents.growth();
    let commits = agents.commits()?;
    let agent = agents.current()?.log();
    let delivered = traffic.stop();
    let differences = agents.stop_and_compare(&cluster)?;
    let report = Report { changes, happened, commits, delivered, growth, differences };
    println!("{report:#?}");
    report.verdict().with_context(|| format!("SHUNT_SEED={seed}; the last agent's log:\n{agent}"))
}
