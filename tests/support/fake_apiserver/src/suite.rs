//! Tests whose bodies run against both servers, and a harness that says which it could not run.

use std::collections::BTreeMap;
use std::env;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, bail};
use libtest_mimic::{Arguments, Completion, Conclusion, Trial};
use serde_json::Value;
use shunt_testbed::{Netns, record_not_run};

use crate::certs::Identity;
use crate::client::Client;
use crate::gate::Gate;
use crate::kubeconfig::Kubeconfig;
use crate::kubernetes::Kubernetes;
use crate::object::{Key, Kind};
use crate::standin::{Standin, TOKEN};

/// How many tests run at a time unless `--test-threads` says it: most of them wait.
const THREADS: usize = 4;

/// A server to be tested against, without objects of another test.
pub enum Api {
    /// The stand-in.
    Standin(Box<Standin>),
    /// The real one, which no other test has meanwhile.
    Kubernetes(MutexGuard<'static, Kubernetes>),
}

impl Api {
    /// Makes or replaces the objects of a text of YAML documents.
    pub fn put(&self, manifest: impl std::fmt::Display) -> Result<()> {
        let manifest = manifest.to_string();
        match self {
            Self::Standin(standin) => standin.put(&manifest),
            Self::Kubernetes(kubernetes) => kubernetes.put(&manifest),
        }
    }

    /// Deletes an object.
    pub fn delete(&self, key: &Key) -> Result<()> {
        match self {
            Self::Standin(standin) => standin.delete(key),
            Self::Kubernetes(kubernetes) => kubernetes.delete(key),
        }
    }

    /// Restarts the server, with the loss of all connections and of the history: what happened
    /// before can be listed, but not watched any more.
    pub fn forget(&self) -> Result<()> {
        match self {
            Self::Standin(standin) => {
                standin.compact();
                standin.cut();
                Ok(())
            }
            Self::Kubernetes(kubernetes) => kubernetes.restart(),
        }
    }

    /// The stand-in; an error if it is the real one, which does nothing on command.
    pub fn standin(&self) -> Result<&Standin> {
        match self {
            Self::Standin(standin) => Ok(standin),
            Self::Kubernetes(_) => bail!("a test of the stand-in runs against kube-apiserver"),
        }
    }

    /// The server's authority in PEM, if it speaks TLS.
    pub fn authority(&self) -> Option<String> {
        match self {
            Self::Standin(standin) => standin.authority(),
            Self::Kubernetes(kubernetes) => Some(kubernetes.authority().pem()),
        }
    }

    /// A certificate for a client of this name, which the server takes for who it says.
    pub fn client_certificate(&self, name: &str) -> Result<Identity> {
        match self {
            Self::Standin(standin) => standin.client_certificate(name),
            Self::Kubernetes(kubernetes) => kubernetes.authority().client(name),
        }
    }

    /// What makes connections to it.
    pub fn connector(&self) -> Box<dyn Fn() -> std::io::Result<std::net::TcpStream> + Send + Sync> {
        match self {
            Self::Standin(standin) => {
                let address = standin.address();
                Box::new(move || std::net::TcpStream::connect(address))
            }
            Self::Kubernetes(kubernetes) => Box::new(kubernetes.connector()),
        }
    }

    /// A way to it from a network namespace, and a kubeconfig for the agent there.
    pub fn reach(&self, netns: &Netns) -> Result<(Gate, Kubeconfig)> {
        match self {
            Self::Standin(standin) => standin.reach(netns),
            Self::Kubernetes(kubernetes) => kubernetes.reach(netns),
        }
    }

    /// All Events, as an administrator sees them.
    pub fn events(&self) -> Result<Vec<Value>> {
        const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
        Ok(match self {
            Self::Standin(standin) => standin.all(Kind::Event),
            Self::Kubernetes(kubernetes) => {
                let list = kubernetes.admin().get(EVENTS)?.body;
                list["items"].as_array().cloned().unwrap_or_default()
            }
        })
    }

    /// A client with the rights of the agent.
    pub fn client(&self) -> Result<Client> {
        Client::new(self.connector(), self.authority().as_deref(), TOKEN)
    }
}

/// A test by its name.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// What it does.
    pub body: fn(Api) -> Result<()>,
    /// Whether kube-apiserver can be used too: it does nothing wrong on command.
    pub both: bool,
}

/// The cases of functions of these names, which run against both servers.
#[macro_export]
macro_rules! both {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::Case { name: stringify!($name), body: $name, both: true }),*]
    };
}

/// The cases of functions of these names, which run against the stand-in only.
#[macro_export]
macro_rules! standin_only {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::Case { name: stringify!($name), body: $name, both: false }),*]
    };
}

/// How many tests did not run, by the reason.
static NOT_RUN: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// A test; reported as ignored, with the reason, if this machine cannot run it.
pub fn trial(
    name: impl Into<String>,
    ready: Result<(), String>,
    body: impl FnOnce() -> Result<()> + Send + 'static,
) -> Trial {
    let test = move || match ready {
        Err(reason) => {
            let mut not_run = NOT_RUN.lock().unwrap_or_else(PoisonError::into_inner);
            *not_run.entry(reason.clone()).or_insert(0) += 1;
            Ok(Completion::ignored_with(reason))
        }
        Ok(()) => body().map(|()| Completion::Completed).map_err(|e| format!("{e:?}").into()),
    };
    Trial::ignorable_test(name, test)
}

/// Runs the tests that the command line asks for, as `cargo test` does, so many at a time unless
/// `--test-threads` says it.
pub fn run_trials(threads: usize, trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    conclude(&libtest_mimic::run(&arguments, trials))
}

/// Runs the cases of these modules. Those with kube-apiserver wait for each other and come last.
pub fn run(modules: &[(&str, Vec<Case>)]) -> ExitCode {
    let (mut trials, mut real) = (Vec::new(), Vec::new());
    for (module, cases) in modules {
        for &Case { name, body, both } in cases {
            let name = format!("{module}::{name}");
            let standin = move || body(Api::Standin(Box::new(Standin::start()?)));
            trials.push(trial(&name, Ok(()), standin).with_kind("stand-in"));
            if both {
                let ready = Kubernetes::installed().map(drop);
                let kubernetes = move || body(Api::Kubernetes(kubernetes()?));
                real.push(trial(name, ready, kubernetes).with_kind("kube-apiserver"));
            }
        }
    }
    trials.append(&mut real);
    run_trials(THREADS, trials)
}

/// A test by its name that needs the real server, and other programs beside it.
pub type Real = (&'static str, fn(&Kubernetes) -> Result<()>);

/// A test by its name that needs no other program.
pub type Alone = (&'static str, fn() -> Result<()>);

/// Runs tests one after the other, those of `real` where kube-apiserver and `programs` beside it are
/// installed.
pub fn run_real(programs: &[&'static str], alone: &[Alone], real: &[Real]) -> ExitCode {
    let ready = Kubernetes::installed_with(programs).map(drop);
    let alone = alone.iter().map(|&(name, body)| trial(name, Ok(()), body));
    let real =
        real.iter().map(|&(name, body)| trial(name, ready.clone(), move || body(&*kubernetes()?)));
    run_trials(1, alone.chain(real).collect())
}

/// Says last how many tests were not run and why.
#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test harness: the reader of the results looks there"
)]
pub fn conclude(conclusion: &Conclusion) -> ExitCode {
    let own = env::current_exe().unwrap_or_default();
    let own = own.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash.
    let own = own.rsplit_once('-').map_or(&*own, |(name, _)| name);
    for (reason, tests) in &*NOT_RUN.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("{tests} tests of {own} were not run: {reason}");
        if let Err(error) = record_not_run(own, *tests, reason) {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

/// The one kube-apiserver of this process, without objects.
///
/// # Errors
/// If it is not installed or does not start.
pub fn kubernetes() -> Result<MutexGuard<'static, Kubernetes>> {
    static RUNNING: OnceLock<Result<Mutex<Kubernetes>, String>> = OnceLock::new();
    let running = RUNNING.get_or_init(|| {
        let assets = Kubernetes::installed()?;
        let started = Kubernetes::start(&assets).map_err(|error| format!("{error:#}"))?;
        Ok(Mutex::new(started))
    });
    let running = running.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    // What a failed test has left there is cleared like everything else.
    let running = running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    running.clear().context("cannot clear what the test before has made")?;
    Ok(running)
}
