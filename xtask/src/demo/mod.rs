//! `cargo xtask demo`: the agent, a small cluster of network namespaces, and a few thousand
//! connections to look at.
//!
//! Everything it says is checked, and its exit code is the verdict. It runs in a network namespace
//! of its own, and what it makes lives as long as its process, so it leaves nothing behind however
//! it ends.

mod cluster;
mod page;
mod traffic;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use shunt_testbed::Agent;

use self::cluster::{BACKENDS, Cluster, ENDPOINTS, EXAMPLE, GONE, REMAINING, Target};
use self::page::Page;
use self::traffic::Sent;
use crate::agent;
use crate::command::{cargo, repository, run as run_command};
use crate::packages::{self, Installer};
use crate::privilege;
use crate::style::Style;

/// Connections to each address.
const CONNECTIONS: usize = 1000;

/// How long connections are opened before a backend goes away.
const BEFORE: Duration = Duration::from_millis(300);

/// How long they are opened afterwards. In the second half, none may reach the backend.
const AFTER: Duration = Duration::from_secs(2);

/// How long the agent may take to program one Service.
const READY: Duration = Duration::from_secs(5);

/// The way of a packet to the first address of the Service: chains and maps, and what matters of them.
const WAY: [(&str, &str); 5] = [
    ("chain nat-prerouting", "jump services"),
    ("chain services", "vmap @service-ips"),
    ("map service-ips", "10.96.0.10 . tcp . 80"),
    ("chain lb-2", "numgen random mod 2"),
    ("map endpoints", "10.96.0.10 . tcp . 80"),
];

/// Build the agent, then run ourselves once more where we may do what we like to the network.
pub(crate) fn prepare(installer: &Installer) -> Result<()> {
    installer.ensure(&[packages::BUILD, packages::NAMESPACES])?;
    // Not as it is released: people wait for it.
    run_command(cargo().args(["build", "--locked", "--bin", "shunt"]))?;
    let (agent, xtask) = (agent::built("debug/shunt")?, agent::built("debug/xtask")?);
    run_command(privilege::isolated(&xtask)?.args(["demo", "--agent"]).arg(agent))
}

/// The demo proper, with this binary as the agent.
pub(crate) fn run(binary: &Path) -> Result<()> {
    let mut page = Page { style: Style::of_stdout(), sections: 0 };
    let cluster = Cluster::new()?;
    page.section("A cluster of network namespaces");
    cluster.introduce(&page);

    page.section(format!("The agent starts: shunt run --manifests {EXAMPLE}"));
    let started = Instant::now();
    let agent = Agent::builder(binary, cluster.node()).manifests(cluster.manifests()).start()?;
    let took = started.elapsed();
    page.claim(took < READY, format!("ready after {}", milliseconds(took)))?;

    let targets = cluster.targets()?;
    spread(&mut page, &targets)
        .and_then(|()| removal(&mut page, &cluster, &targets))
        .and_then(|()| rules(&mut page, &cluster))
        .with_context(|| format!("the demo stopped early; the agent's log:\n{}", agent.log()))?;
    departure(&mut page, &targets, agent)?;
    println!("\n{}", page.style.green("Everything is as it should be."));
    let shunt = binary.strip_prefix(repository()).unwrap_or(binary).display();
    println!("The cluster ends with this process. To continue:");
    for (what, why) in [
        (format!("{shunt} render --manifests {EXAMPLE}"), "all rules for this Service"),
        (format!("{shunt} check"), "what this machine lacks as a node"),
        ("docs/quick-start.md".to_owned(), "a real cluster, with kind"),
    ] {
        println!("   {what:<55}  {why}");
    }
    Ok(())
}

/// Every backend gets its share.
fn spread(page: &mut Page, targets: &[Target<'_>]) -> Result<()> {
    page.section(format!("{CONNECTIONS} connections to each address of the Service"));
    for target in targets {
        let sent = traffic::send(target.client, target.address, CONNECTIONS)?;
        page.claim(sent.tally.is_even_among(&BACKENDS), format!("{target} {sent}"))?;
        let sources = sent.tally.sources();
        ensure!(target.sources_are_right(&sent.tally), "{target} pods see {sources:?}");
    }
    page.line("Behind a ClusterIP, pods see their client; behind a node port, the node.");
    Ok(())
}

/// A backend goes away while connections are being opened.
fn removal(page: &mut Page, cluster: &Cluster, targets: &[Target<'_>]) -> Result<()> {
    page.section(format!("{GONE} goes away: {ENDPOINTS} is replaced by one without it"));
    let (removed, sent) = remove_under_load(cluster, targets)?;
    let (mut total, mut lost, mut slowest) = (0, 0, Duration::ZERO);
    for (target, sent) in targets.iter().zip(&sent) {
        total += sent.tally.total();
        lost += sent.tally.lost();
        // Without a connection before the removal, its end would go unnoticed.
        let last = sent.last_opened.get(GONE);
        let last = last.with_context(|| format!("{target} no connection reached {GONE} before"))?;
        slowest = slowest.max(last.saturating_duration_since(removed));
    }
    let late = format!("{} later, no client reaches {GONE} any more", milliseconds(slowest));
    page.claim(slowest < AFTER / 2, late)?;
    page.claim(lost == 0, format!("{lost} of {total} connections lost meanwhile"))?;
    remaining(page, targets)
}

/// The other backends share all connections.
fn remaining(page: &mut Page, targets: &[Target<'_>]) -> Result<()> {
    for target in targets {
        let sent = traffic::send(target.client, target.address, CONNECTIONS)?;
        page.claim(sent.tally.is_even_among(&REMAINING), format!("{target} {sent}"))?;
    }
    Ok(())
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

/// What the kernel does with a packet to the Service, as nft prints it.
fn rules(page: &mut Page, cluster: &Cluster) -> Result<()> {
    page.section(
        "The rules on node-1 (nft list table ip shunt): the way of a packet to the ClusterIP",
    );
    let rules = cluster.node().output("nft", &["list", "table", "ip", "shunt"])?;
    for (block, text) in WAY {
        let lines = excerpt(&rules, block, text);
        ensure!(!lines.is_empty(), "{block} does not contain {text}");
        for (number, line) in lines.iter().enumerate() {
            let name = if number == 0 { block } else { "" };
            page.line(format!("{name:<21}{}", page.style.cyan(line)));
        }
    }
    page.line("More Services are more elements of these maps, and not one rule more.");
    Ok(())
}

/// The lines of a chain, a map or a set that contain this text.
fn excerpt<'a>(rules: &'a str, block: &str, text: &str) -> Vec<&'a str> {
    let lines = rules.lines().map(str::trim);
    let mut lines = lines.skip_while(|line| line.strip_suffix(" {") != Some(block));
    lines
        .by_ref()
        .take_while(|line| *line != "}")
        .filter(|line| line.contains(text))
        .map(|line| line.trim_start_matches("elements = { ").trim_end_matches([',', ' ', '}']))
        .collect()
}

/// The agent stops; what it programmed stays.
fn departure(page: &mut Page, targets: &[Target<'_>], agent: Agent) -> Result<()> {
    page.section("The agent stops (SIGTERM); the rules stay");
    agent.stop()?;
    remaining(page, targets)
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_quoted_by_the_line() {
        let rules = "table ip shunt {\n\tmap endpoints {\n\t\tsize 512\n\t\telements = { a . 0 : b,\n\t\t\t\
                     a . 1 : c }\n\t}\n\n\tmap others {\n\t\telements = { a . 2 : d }\n\t}\n}\n";
        assert_eq!(excerpt(rules, "map endpoints", "a . "), ["a . 0 : b", "a . 1 : c"]);
        assert!(excerpt(rules, "map endpoints", "x").is_empty());
        assert!(excerpt(rules, "map end", "a . ").is_empty());
    }
}
