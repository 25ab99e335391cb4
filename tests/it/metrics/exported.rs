//! What the agent exports.

use anyhow::Result;
use shunt_testbed::{Agent, Exposition, METRICS_PORT};

/// What the agent exports now.
pub(crate) fn scrape(agent: &Agent) -> Result<Exposition> {
    let answer = agent.http_get(METRICS_PORT, "/metrics")?;
    anyhow::ensure!(answer.status == 200, "{answer:?}");
    Exposition::parse(&answer.body)
}

/// Waits until a sample is exported, and returns all of them: the first sync is counted a moment after
/// the agent is ready.
pub(crate) fn wait_for_sample(
    agent: &Agent,
    name: &str,
    labels: &[(&str, &str)],
) -> Result<Exposition> {
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        scraped.value(name, labels).map(|_| scraped)
    })
}

/// Waits until so many Services are programmed, and returns what is exported then: metrics are read
/// one after the other, and that one is set after all others, so it takes another look.
pub(crate) fn wait_for_services(agent: &Agent, count: u32) -> Result<Exposition> {
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        (scraped.value("shunt_services", &[]) == Some(count.into())).then_some(())
    })?;
    scrape(agent)
}
