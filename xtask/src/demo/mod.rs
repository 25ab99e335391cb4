//! `cargo xtask demo`: the agent, a small cluster of network namespaces, and a few thousand
//! connections to look at.
//!
//! Everything it says is checked, and its exit code is the verdict. It runs in a network namespace
//! of its own, and what it makes lives as long as its process, so it leaves nothing behind however
//! it ends.

mod cluster;
mod page;
mod traffic;

use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shunt_testbed::Agent;

use self::cluster::{BACKENDS, Cluster, ENDPOINTS, EXAMPLE, GONE, REMAINING, Target};
use self::page::Page;
use self::traffic::Sent;
use crate::agent;
use crate::command::run as run_command;
use crate::packages::{Installer, Purpose};
use crate::privilege::Privilege;
use crate::style::Style;

/// Connections to each address.
const CONNECTIONS: usize = 1000;

/// How long connections are opened before a backend goes away.
const BEFORE: Duration = Duration::from_millis(300);

/// How long they are opened afterwards. In the second half, none may reach the backend.
const AFTER: Duration = Duration::from_secs(2);

/// How long the agent may take to program one Service.
const READY: Duration = Duration::from_secs(5);

/// Build the agent, then run ourselves once more where we may do what we like to the network.
pub(crate) fn prepare(installer: &Installer) -> Result<()> {
    installer.ensure(&[Purpose::Build, Purpose::Demo])?;
    let privilege = Privilege::probe()?;
    let agent = agent::build()?;
    let xtask = env::current_exe().context("cannot find the program that runs")?;
    run_command(privilege.isolated(&xtask).args(["demo", "--agent"]).arg(agent))
}

/// The demo proper, with this binary as the agent.
pub(crate) fn run(agent: &Path) -> Result<()> {
    let mut page = Page::new(Style::of_stdout());
    let cluster = Cluster::new()?;
    page.section("A cluster of network namespaces");
    cluster.introduce(&page);

    page.section(format!("The agent starts: shunt run --manifests {EXAMPLE}"));
    let started = Instant::now();
    let agent = Agent::builder(agent, cluster.node()).manifests(cluster.manifests()).start()?;
    let took = started.elapsed();
    page.claim(took < READY, format!("ready after {}", milliseconds(took)));

    let targets = cluster.targets()?;
    spread(&mut page, &targets)
        .and_then(|()| removal(&mut page, &cluster, &targets))
        .and_then(|()| rules(&mut page, &cluster))
        .with_context(|| format!("the demo broke off; the agent's log:\n{}", agent.log()))?;
    let log = agent.log();
    departure(&mut page, &targets, agent)?;
    page.finish(&log)
}

/// Every backend gets its share.
fn spread(page: &mut Page, targets: &[Target<'_>]) -> Result<()> {
    page.section(format!("{CONNECTIONS} connections to each address of the Service"));
    for target in targets {
        let tally = traffic::send(target.client, target.address, CONNECTIONS)?.tally;
        page.subject(target);
        page.bars(&tally, &BACKENDS);
        page.claim(
            tally.is_even_among(&BACKENDS),
            "every backend reached, as evenly as chance has it, and no connection lost",
        );
        page.claim(target.sources_are_right(&tally), target.expected_sources());
    }
    Ok(())
}

/// A backend goes away while connections are being opened.
fn removal(page: &mut Page, cluster: &Cluster, targets: &[Target<'_>]) -> Result<()> {
    page.section(format!("{GONE} goes away: {ENDPOINTS} is replaced by one without it"));
    let (removed, sent) = remove_under_load(cluster, targets)?;
    let mut slowest = Some(Duration::ZERO);
    for (target, sent) in targets.iter().zip(&sent) {
        page.subject(target);
        // Without a connection before the removal, its end would go unnoticed.
        let Some(last) = sent.last_opened.get(GONE) else {
            page.claim(false, format!("{GONE} is reached before it goes away"));
            slowest = None;
            continue;
        };
        let late = last.saturating_duration_since(removed);
        let over = late < AFTER / 2;
        slowest = slowest.filter(|_| over).map(|slowest| slowest.max(late));
        page.claim(over, moment_of_last(late));
        let (total, lost) = (sent.tally.total(), sent.tally.lost());
        page.claim(lost == 0, format!("{lost} of {total} connections lost meanwhile"));
        let more = traffic::send(target.client, target.address, CONNECTIONS)?;
        page.claim(
            more.tally.is_even_among(&REMAINING),
            format!("the others share {CONNECTIONS} more: {more}"),
        );
    }
    if let Some(slowest) = slowest {
        page.subject(format!(
            "{} after the file was replaced, no client reaches {GONE} any more",
            milliseconds(slowest)
        ));
    }
    Ok(())
}

/// When the last connection was opened that reached the backend which goes away: so long after
/// its removal.
fn moment_of_last(late: Duration) -> String {
    if late.is_zero() {
        format!("no connection opened after that reached {GONE}")
    } else {
        format!("the last connection that reached {GONE} was opened {} after", milliseconds(late))
    }
}

/// Take a backend away while all targets are connected to. When that was, and what became of the
/// connections.
fn remove_under_load(cluster: &Cluster, targets: &[Target<'_>]) -> Result<(Instant, Vec<Sent>)> {
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = targets
            .iter()
            .map(|target| {
                scope.spawn(|| traffic::send_until(target.client, target.address, &enough))
            })
            .collect();
        thread::sleep(BEFORE);
        let removed = Instant::now();
        let outcome = cluster.remove_backend();
        if outcome.is_ok() {
            thread::sleep(AFTER);
        }
        // Whatever happened: the scope ends only when the clients do.
        enough.store(true, Ordering::Relaxed);
        let sent: Result<Vec<_>> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        outcome?;
        Ok((removed, sent?))
    })
}

/// The rules, as nft prints them.
fn rules(page: &mut Page, cluster: &Cluster) -> Result<()> {
    page.section("The rules on node-1: nft list ruleset");
    let rules = cluster.node().output("nft", &["list", "ruleset"])?;
    for line in [
        "How to read them: chain `services` looks address, protocol and port up in `service-ips`,",
        "where an element sends a frontend with N endpoints to chain `lb-N`. That draws a number",
        "below N and takes the endpoint of that number from `endpoints`. Node ports have twins of",
        "these three. More Services are more elements, and not one rule more.",
    ] {
        page.aside(line);
    }
    page.quote(&rules);
    for table in ["table ip shunt", "table ip6 shunt"] {
        page.claim(rules.contains(table), format!("there is a {table}"));
    }
    Ok(())
}

/// The agent stops; what it programmed stays.
fn departure(page: &mut Page, targets: &[Target<'_>], agent: Agent) -> Result<()> {
    page.section("The agent stops (SIGTERM); the rules stay");
    agent.stop()?;
    for target in targets {
        let sent = traffic::send(target.client, target.address, CONNECTIONS)?;
        page.claim(sent.tally.is_even_among(&REMAINING), format!("{target}: {sent}"));
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
