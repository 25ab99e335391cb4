//! The agent as a process: started, watched, stopped or killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::exposition::Exposition;
use crate::foreign_writer::ForeignWriter;
use crate::http::{HttpAnswer, http_get};
use crate::netns::{Netns, leashed};
use crate::patience::eventually;
use crate::program::Program;
use crate::topology::Host;
use tempfile::TempDir;

/// The port of `/healthz` and `/livez`.
pub const HEALTH_PORT: u16 = 10_256;

/// The port of `/metrics`.
pub const METRICS_PORT: u16 = 10_249;

/// How to start the agent; from [`Agent::builder`].
pub struct AgentBuilder {
    binary: PathBuf,
    node: Host,
    wrapper: Vec<String>,
    args: Vec<String>,
    config: Option<TempDir>,
    names_node: bool,
}

impl AgentBuilder {
    /// Reads manifests from this file or directory.
    pub fn manifests(self, path: impl AsRef<Path>) -> Self {
        self.arg("--manifests").arg(path.as_ref().display().to_string())
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds `--config` with a file of this content. What every configuration starts with,
    /// `apiVersion` and `kind`, is put in front.
    pub fn config(mut self, settings: &str) -> Result<Self> {
        let scratch = TempDir::new()?;
        let file = scratch.path().join("config.yaml");
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(&file, format!("{head}{settings}"))?;
        self.config = Some(scratch);
        Ok(self.arg("--config").arg(file.display().to_string()))
    }

    /// Leaves `--hostname-override` out: the configuration has the name of the node.
    pub fn name_from_configuration(mut self) -> Self {
        self.names_node = false;
        self
    }

    /// Puts a command in front, such as `strace -D …`. It must replace itself by the agent, so that
    /// the process stays the one that was started.
    pub fn wrapper(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Starts the agent and waits until it is ready: until `/healthz` answers 200.
    pub fn start(self) -> Result<Agent> {
        let agent = self.spawn()?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Starts the agent and waits for nothing.
    pub fn spawn(self) -> Result<Agent> {
        let (node, program) = (self.node.ns.clone(), Program::start(self.command())?);
        let wants_writer = ForeignWriter::is_wanted();
        let _foreign_writer = wants_writer.then(|| ForeignWriter::start(&node)).transpose()?;
        Ok(Agent { node, program, _config: self.config, _foreign_writer })
    }

    /// Runs the agent with `--once` to its end, whatever that is.
    pub fn once(self) -> Result<Output> {
        let builder = self.arg("--once");
        let mut command = builder.command();
        command.output().with_context(|| format!("cannot start {command:?}"))
    }

    /// The agent enters the node's namespace on its own, which is what `--netns` is for.
    fn command(&self) -> Command {
        let mut words = self.wrapper.iter().map(Into::into).chain([self.binary.clone()]);
        let mut command = leashed(words.next().unwrap_or_default(), None);
        command.args(words).args(["run", "--netns"]).arg(self.node.path());
        if self.names_node {
            command.args(["--hostname-override", &self.node.name]);
        }
        let says_whose = self.args.iter().any(|arg| arg.starts_with("--own-tables"));
        if ForeignWriter::is_wanted() && !says_whose {
            command.arg("--own-tables=false");
        }
        command.args(&self.args);
        command
    }
}

/// A running agent.
pub struct Agent {
    node: Netns,
    program: Program,
    _config: Option<TempDir>,
    _foreign_writer: Option<ForeignWriter>,
}

impl Deref for Agent {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Agent {
    /// Prepares `binary run` for a node.
    pub fn builder(binary: impl Into<PathBuf>, node: &Host) -> AgentBuilder {
        AgentBuilder {
            binary: binary.into(),
            node: node.clone(),
            wrapper: Vec::new(),
            args: Vec::new(),
            config: None,
            names_node: true,
        }
    }

    /// Waits until `/healthz` answers 200.
    pub fn wait_ready(&self) -> Result<()> {
        let is_ready = |answer: &HttpAnswer| (answer.status == 200).then_some(());
        self.wait_for_answer(HEALTH_PORT, "/healthz", is_ready).context("the agent is not ready")
    }

    /// The answer to an HTTP GET on a port of the agent, asked from its node.
    pub fn http_get(&self, port: u16, path: &str) -> Result<HttpAnswer> {
        http_get(&self.node, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), path)
    }

    /// Waits until an HTTP GET on a port of the agent is answered as `accept` wants, and returns
    /// what that made of it.
    pub fn wait_for_answer<T>(
        &self,
        port: u16,
        path: &str,
        accept: impl Fn(&HttpAnswer) -> Option<T>,
    ) -> Result<T> {
        eventually(format_args!("the answer to {path}"), || {
            let answer = self.http_get(port, path);
            let accepted = answer.as_ref().ok().and_then(&accept);
            let over = accepted.is_none().then(|| self.exit_status()).flatten();
            over.map_or(Ok(accepted), |status| bail!("ended: {status}; {path}: {answer:?}"))
        })
        .with_context(|| self.log())
    }

    /// What the agent exports now.
    pub fn scrape(&self) -> Result<Exposition> {
        Exposition::parse(&self.http_get(METRICS_PORT, "/metrics")?.body)
    }

    /// Waits until a sample is exported with such a value, and returns all samples of another look:
    /// they are read one after the other.
    pub fn wait_for_sample(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        is_so: impl Fn(f64) -> bool,
    ) -> Result<Exposition> {
        self.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
            let value = Exposition::parse(&answer.body).ok()?.value(name, labels)?;
            is_so(value).then_some(())
        })
        .with_context(|| format!("{name} {labels:?}"))?;
        self.scrape()
    }

    /// Asks the agent to end (SIGTERM) and waits until it has; anything but exit code 0 is an error.
    pub fn stop(self) -> Result<()> {
        let status = self.end(Signal::SIGTERM)?;
        if !status.success() {
            bail!("the agent did not stop cleanly: {status}\n{}", self.log());
        }
        Ok(())
    }

    /// Kills the agent (SIGKILL) and waits until it is gone.
    pub fn kill(self) -> Result<()> {
        let status = self.end(Signal::SIGKILL)?;
        if status.signal() != Some(libc::SIGKILL) {
            bail!("the agent had ended before it was killed: {status}\n{}", self.log());
        }
        Ok(())
    }

    fn end(&self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal)?;
        self.wait_for_end().with_context(|| format!("it ignores {signal}"))
    }
}
