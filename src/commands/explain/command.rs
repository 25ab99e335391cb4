//! `shunt explain`: explains what becomes of a connection, and why.

use std::net::IpAddr;

use anyhow::{Context, anyhow};
use shunt_core::explain::{Code, Finding, walk};
use shunt_core::model::{Family, ObjectName};

use super::report::ServiceExplanation;
use super::source::{assumed_packet, packet_from_namespace};
use super::{
    Explanation, PacketFacts, Subject, explain as explain_packet, first_packet, of_service,
};
use crate::agent::{Failure, kernel_errors};
use crate::commands::args::{Destination, Explain, Probes, service_port};
use crate::commands::history;
use crate::commands::objects::{place, settled};
use crate::commands::output;
use crate::dataplane::KernelTables;
use crate::serve::query::{Objects, Selection};

/// Explains a destination or a Service, and prints the result. The exit code is the verdict's.
pub(in crate::commands) fn explain(arguments: &Explain) -> Result<(), Failure> {
    let reader = arguments.objects.start(true)?;
    let service = arguments.service.as_deref().map(|it| service_port(it, None)).transpose()?;
    let selection = match (&service, arguments.to) {
        (Some((name, _)), _) => Selection::Service(name.clone()),
        (None, Some(to)) => Selection::Address { address: to.address, port: to.port },
        (None, None) => return Err(anyhow!("give a Service or --to").into()),
    };
    let (mut explanation, is_certain) = settled(|| -> anyhow::Result<_> {
        let objects = reader.read(&selection)?;
        let (store, desired) = objects.planned();
        let agent = reader.is_agent().then_some(&objects);
        let asked = PacketQuestion {
            arguments,
            subject: Subject { store: &store, desired: &desired, agent },
        };
        let mut explanation = match &service {
            Some((name, port)) => asked.explain_service(name, *port)?,
            None => {
                let only = arguments.to.map(|to| asked.explain(to)).transpose()?;
                ServiceExplanation { frontends: only.into_iter().collect(), ..Default::default() }
            }
        };
        explanation.changes = history::lines(&objects);
        let differs =
            explanation.frontends.iter().any(|frontend| frontend.has(Code::KernelDiffers));
        // The number of syncs does not matter: they concern other objects, too.
        let Objects { changes, history, .. } = objects;
        Ok((explanation, differs.then_some((changes, history))))
    })?;
    if !is_certain {
        explanation.frontends.iter_mut().for_each(Explanation::forget_difference);
    }
    explanation.judge();
    let ServiceExplanation { frontends, changes, verdict, .. } = &mut explanation;
    let verdict = *verdict;
    match (&service, &mut frontends[..]) {
        (None, [only]) => {
            only.changes.append(changes);
            output(arguments.output, only)?;
        }
        _ => output(arguments.output, &explanation)?,
    }
    match verdict.exit_status() {
        0 => Ok(()),
        code => Err(Failure::Result(code)),
    }
}

/// A question with the objects that answer it.
struct PacketQuestion<'a> {
    arguments: &'a Explain,
    subject: Subject<'a>,
}

impl PacketQuestion<'_> {
    fn explain(&self, to: Destination) -> anyhow::Result<Explanation> {
        let subject = &self.subject;
        if subject.agent.is_none() {
            let context = subject.desired.node_context();
            let node = context.and_then(|it| it.node_address(Family::of(to.address)));
            let packet = assumed_packet(self.arguments.from, node, to);
            return Ok(explain_packet(&packet, subject, None, &PacketFacts::default()));
        }
        let namespace = self.arguments.netns.as_deref();
        let packet = match namespace {
            Some(namespace) => packet_from_namespace(namespace, self.arguments.from, to)?,
            None => first_packet(self.arguments.from, to)?,
        };
        let context = subject.desired.node_context().context("the agent has no plan yet")?;
        let mut tables =
            KernelTables::open(context, Family::of(to.address)).map_err(kernel_errors::explain)?;
        let way = walk(&packet, &mut tables).map_err(kernel_errors::explain)?;
        let mark = context.options.masquerade_mark();
        let mut facts = PacketFacts::gather(&packet, &way, mark, &mut tables);
        if let Some(which) = self.arguments.probe {
            facts.probe(&packet, namespace, which == Probes::All)?;
        }
        Ok(explain_packet(&packet, subject, Some(&way), &facts))
    }

    fn explain_service(
        &self,
        name: &ObjectName,
        port: Option<&str>,
    ) -> anyhow::Result<ServiceExplanation> {
        let (frontends, mut findings) = of_service(name, port, &self.subject);
        if let (Some(port), true, true) = (port, frontends.is_empty(), findings.is_empty()) {
            anyhow::bail!(
                "Service {name} has no port {port}: `shunt services {name}` lists its ports"
            );
        }
        let fits = |address: &IpAddr| {
            self.arguments.from.is_none_or(|from| Family::of(from) == Family::of(*address))
        };
        if let Some(from) = self.arguments.from
            && !frontends.is_empty()
            && !frontends.iter().any(|(_, address)| fits(address))
        {
            let family = Family::of(from);
            let text = format!("Service {name} has no {family} address, so {from} cannot reach it");
            findings.push(Finding::new(Code::NoClusterIp, text));
        }
        let several = frontends.len() > 1;
        let mut explanations = Vec::new();
        for (key, address) in frontends.into_iter().filter(|(_, address)| fits(address)) {
            let (_, port) = place(key);
            let protocol = key.protocol().number();
            match self.explain(Destination { address, port, protocol }) {
                Ok(explanation) => explanations.push(explanation),
                // Such as the node without a route of one family: the others still have answers.
                Err(error) if several => {
                    findings.push(Finding::new(Code::NotExplained, format!("{key}: {error:#}")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(ServiceExplanation {
            service: name.to_string(),
            findings,
            frontends: explanations,
            ..Default::default()
        })
    }
}
