//! Scenarios: files that say what must happen to packets, run on shunt with manifests and, where
//! `KUBEBUILDER_ASSETS` names their binaries, on shunt with kube-apiserver and on kube-proxy.
//! `README.md` beside this file teaches the language.

mod expect;
mod explain;
mod language;
mod objects;
mod run;
mod subject;

use std::process::ExitCode;
use std::{env, iter};

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use shunt_fake_apiserver::{Kubernetes, conclude, trial};

use crate::language::ApiServer;
use crate::subject::Kind;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!($name, ".yaml")))),*]
    };
}

/// The files, which are part of the binary: it also runs in virtual machines.
const FILES: [(&str, &str); 24] = files![
    "affinity",
    "agent",
    "api",
    "balancing",
    "check",
    "commands",
    "configuration",
    "conflicts",
    "connections",
    "diff",
    "endpoints",
    "explain",
    "flows",
    "frontends",
    "health_checks",
    "history",
    "load_balancers",
    "local_traffic",
    "loopback",
    "node_ports",
    "people",
    "policies",
    "trace",
    "usage",
];

fn main() -> ExitCode {
    // As many names as are given, like other test programs.
    let (names, options): (Vec<String>, Vec<String>) =
        env::args().skip(1).partition(|argument| !argument.starts_with('-'));
    let mut arguments = Arguments::from_iter(iter::once("scenarios".to_owned()).chain(options));
    arguments.test_threads.get_or_insert(16);
    let mut trials = match trials() {
        Ok(trials) => trials,
        Err(error) => {
            let message = format!("{error:#}");
            vec![Trial::test("files", move || Err(Failed::from(message)))]
        }
    };
    trials.retain(|trial| {
        let is_meant = |name: &String| match arguments.exact {
            true => trial.name() == name,
            false => trial.name().contains(name),
        };
        names.is_empty() || names.iter().any(is_meant)
    });
    conclude(&libtest_mimic::run(&arguments, trials))
}

fn trials() -> Result<Vec<Trial>> {
    let ready = Kubernetes::installed_with(&["kube-proxy"]).map(drop);
    let (mut plain, mut real) = (Vec::new(), Vec::new());
    for (file, text) in FILES {
        for scenario in language::parse(text).with_context(|| format!("{file}.yaml"))? {
            let name = format!("{file}::{}", scenario.scenario);
            let on = |name, ready, kind| {
                let scenario = scenario.clone();
                trial(name, ready, move || run::run(&scenario, kind))
            };
            let kind = scenario.api.map_or(Kind::Manifests, |_| Kind::Standin);
            plain.push(on(name.clone(), Ok(()), kind));
            if scenario.not_api.is_some() || scenario.api == Some(ApiServer::StandIn) {
                continue;
            }
            let real_name = format!("kube-apiserver::{name}");
            real.push(on(real_name, ready.clone(), Kind::KubeApiserver));
            if scenario.not_kube_proxy.is_none() && scenario.api.is_none() {
                real.push(on(format!("kube-proxy::{name}"), ready.clone(), Kind::KubeProxy));
            }
        }
    }
    // Those that wait for each other come last.
    plain.append(&mut real);
    Ok(plain)
}
