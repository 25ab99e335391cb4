//! API servers for tests of the agent: a stand-in that misbehaves on command, and the real
//! kube-apiserver where it is installed; with a gate that decides who gets through to either.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use shunt_fake_apiserver::{Answer, Fault, Kind, Standin, Verb};
//!
//! let api = Standin::start()?;
//! api.put("{apiVersion: v1, kind: Node, metadata: {name: node-1}}")?;
//! api.misbehave(Fault::new(Answer::RetryAfter(429, 1)).on(Verb::Watch).of(Kind::Node).times(2));
//! // … a client at work …
//! assert_eq!(api.requests().iter().filter(|request| request.verb == Verb::List).count(), 1);
//! # Ok(())
//! # }
//! ```

mod certs;
mod client;
mod gate;
mod kubeconfig;
mod kubernetes;
mod marker;
mod object;
pub mod protobuf;
mod proxy;
mod role;
mod runtime;
mod shell;
mod standin;
mod suite;

pub use certs::{Authority, Identity};
pub use client::{Client, Connection, Reply};
pub use gate::Gate;
pub use kubeconfig::Kubeconfig;
pub use kubernetes::Kubernetes;
pub use marker::Marker;
pub use object::{Key, Kind};
pub use proxy::Proxy;
pub use shell::{Shell, everything};
pub use standin::{Answer, Fault, Request, Standin, TOKEN, Verb};
pub use suite::{Alone, Api, Case, Real, conclude, kubernetes, run, run_real, run_trials, trial};
