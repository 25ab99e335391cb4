//! What `shunt explain` must say of a packet before it is sent, and what the packet shows of it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Outcome, Protocol, Tally, Topology};

use crate::language::{Expected, Source};
use crate::subject::SHUNT;

/// An explanation, in words: `delivered pod-1 masquerade=not-local unused=pod-2:not-ready`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explanation {
    verdict: String,
    status: i32,
    /// The codes of all findings.
    codes: BTreeSet<String>,
    /// Why the connection is masqueraded; empty if it is not.
    masquerade: String,
    /// Endpoints that are not used, by host, and why.
    unused: Vec<(String, String)>,
}

impl Explanation {
    /// Returns it with what becomes of the packet: what the verdict says, unless `packet=` says more.
    pub(crate) fn parse(text: &str, is_host: impl Fn(&str) -> bool) -> Result<(Self, Expected)> {
        let mut words = text.split_whitespace();
        let verdict = words.next().context("no verdict")?.to_owned();
        let (status, packet) = match verdict.as_str() {
            "delivered" => (0, None),
            "refused" => (3, Some(Expected::Refused)),
            "dropped" => (3, Some(Expected::Dropped)),
            "not-a-service" => (4, Some(Expected::Unhandled)),
            "unknown" => (1, None),
            "partial" => (5, None),
            _ => bail!("{verdict:?} is no verdict"),
        };
        let mut explanation = Self { verdict, status, ..Self::default() };
        let (mut servers, mut other) = (Vec::new(), None);
        for word in words {
            match word.split_once('=') {
                Some(("masquerade", reason)) => reason.clone_into(&mut explanation.masquerade),
                Some(("unused", unused)) => {
                    let (host, why) = unused.split_once(':').context("unused=host:reason")?;
                    explanation.unused.push((host.to_owned(), why.to_owned()));
                }
                Some(("packet", fate)) => other = Some(Expected::parse(fate)?),
                Some(_) => bail!("{word:?} says nothing of an explanation"),
                None if is_host(word) => servers.push(word.to_owned()),
                None => drop(explanation.codes.insert(word.to_owned())),
            }
        }
        let reach = (!servers.is_empty()).then_some(Expected::Reach(servers, Source::Any));
        let packet = reach.or(other).or(packet);
        Ok((explanation, packet.with_context(|| format!("{text:?}: and the packet?"))?))
    }

    /// Asks `shunt explain` and compares its answer.
    pub(crate) fn ask(
        &self,
        lab: &Topology,
        from: &Host,
        source: Option<IpAddr>,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Result<Value> {
        let question = format!("{to}/{protocol}");
        let address = source.or_else(|| from.ip_like(to.ip()));
        let address = address.context("a host without address")?.to_string();
        let netns = from.path().display().to_string();
        let is_pod = [&lab.pod1, &lab.pod2].iter().any(|pod| pod.name == from.name);
        let sender = if from.name == lab.node.name { vec![] } else { vec!["--from", &address] };
        if is_pod && to.is_ipv4() && protocol == Protocol::Tcp {
            self.ask_with(lab, &question, &["--netns", &netns])?;
        }
        self.ask_with(lab, &question, &sender)
    }

    fn ask_with(&self, lab: &Topology, to: &str, sender: &[&str]) -> Result<Value> {
        let mut command = lab.node.command(SHUNT);
        command.args(["explain", "--output=json", "--to", to]).args(sender);
        let output = command.output()?;
        let json: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            format!("explain {to} {sender:?}: {}", String::from_utf8_lossy(&output.stderr))
        })?;
        let findings = json["findings"].as_array().into_iter().flatten();
        let codes = findings.filter_map(|it| it["code"].as_str()).map(str::to_owned).collect();
        let reason = json["masquerade"]["reason"].as_str().unwrap_or_default();
        let unused = |(host, why): &(String, String)| {
            let endpoints = json["endpoints"].as_array().into_iter().flatten();
            let mut of_host = endpoints.filter(|it| name(lab, &it["address"]) == host);
            of_host.any(|it| it["why"] == **why)
        };
        let holds = json["verdict"] == *self.verdict
            && output.status.code() == Some(self.status)
            && self.codes == codes
            && self.masquerade == reason
            && self.unused.iter().all(unused);
        ensure!(holds, "explain {to} {sender:?}, {}: {json:#}\nis not {self:?}", output.status);
        Ok(json)
    }
}

/// Compares the explanation of a delivery with what the servers saw.
pub(crate) fn compare(
    lab: &Topology,
    from: &Host,
    sender: Option<IpAddr>,
    json: &Value,
    tally: &Tally,
) -> Result<()> {
    let endpoints = json["endpoints"].as_array().context("no endpoints")?.iter();
    let used: BTreeSet<&str> = endpoints
        .filter(|endpoint| endpoint["used"] == true && endpoint["obstacle"].is_null())
        .map(|endpoint| name(lab, &endpoint["address"]))
        .collect();
    let answered: BTreeSet<&str> = tally.by_server().into_keys().collect();
    ensure!(used == answered, "{answered:?} answered: {json:#}");
    let is_own = |source: &IpAddr| from.ips().chain(sender).any(|ip| ip == *source);
    let masqueraded = tally
        .counts
        .iter()
        .any(|(outcome, _)| matches!(outcome, Outcome::Reached { source, .. } if !is_own(source)));
    // The node masquerades its own packets to an address that they have already.
    ensure!(
        from.name == lab.node.name || (json["masquerade"]["applies"] == true) == masqueraded,
        "masquerading was seen: {masqueraded}: {json:#}"
    );
    Ok(())
}

/// The host that has an address.
fn name<'a>(lab: &'a Topology, address: &Value) -> &'a str {
    let address: Option<IpAddr> = address.as_str().and_then(|it| it.parse().ok());
    let owner = lab.hosts().into_iter().find(|host| host.ips().any(|ip| Some(ip) == address));
    owner.map_or("nobody", |host| &host.name)
}
