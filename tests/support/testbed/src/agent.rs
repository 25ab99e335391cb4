//! The agent as a process: started, watched, stopped or killed.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::foreign_writer::ForeignWriter;
use crate::http::{HttpAnswer, http_get};
use crate::netns::{Netns, leashed};
use crate::patience::patience;
use crate::scratch::Scratch;
use crate::topology::Host;

/// How long the agent may take to become ready, to stop, or to log what a test waits for: long enough
/// that on a busy machine, too, it means that it never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait between two questions to the agent.
const POLL: Duration = Duration::from_millis(2);

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
    config: Option<Scratch>,
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
        let scratch = Scratch::new()?;
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
        Agent::spawn(self)
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
        command.args(&self.args).stdin(Stdio::null());
        command
    }
}

/// A running agent. It is killed on drop, and by the kernel when this process dies. Dropped during
/// a panic, it shows its log.
pub struct Agent {
    node: Netns,
    pid: Pid,
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
    _config: Option<Scratch>,
    _foreign_writer: Option<ForeignWriter>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    log: String,
    exit: Option<ExitStatus>,
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

    fn spawn(builder: AgentBuilder) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (started, start) = mpsc::channel();
        let mut command = builder.command();
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let supervisor = {
            let shared = Arc::clone(&shared);
            // The agent dies with the thread that starts it, hence one that lives as long.
            thread::Builder::new().name("agent".into()).spawn(move || match command.spawn() {
                Ok(child) => {
                    let _ = started.send(Ok(Pid::from_raw(child.id() as i32)));
                    shared.supervise(child);
                }
                Err(error) => {
                    let _ = started.send(Err(error).with_context(|| format!("{command:?}")));
                }
            })?
        };
        let pid = start.recv()?.context("cannot start the agent")?;
        let node = &builder.node.ns;
        let foreign_writer =
            ForeignWriter::is_wanted().then(|| ForeignWriter::start(node)).transpose()?;
        Ok(Self {
            node: builder.node.ns.clone(),
            pid,
            shared,
            supervisor: Some(supervisor),
            _config: builder.config,
            _foreign_writer: foreign_writer,
        })
    }

    /// Waits until `/healthz` answers 200.
    pub fn wait_ready(&self) -> Result<()> {
        let deadline = Instant::now() + patience(PATIENCE);
        while self.http_status("/healthz").ok() != Some(200) {
            if let Some(status) = self.exit_status() {
                bail!("the agent ended before it was ready: {status}\n{}", self.log());
            }
            if Instant::now() > deadline {
                bail!("the agent is not ready after {:?}\n{}", patience(PATIENCE), self.log());
            }
            thread::sleep(patience(POLL));
        }
        Ok(())
    }

    /// The status code of an HTTP GET on the agent's health port, asked from its node.
    pub fn http_status(&self, path: &str) -> Result<u16> {
        Ok(self.http_get(HEALTH_PORT, path)?.status)
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
        let deadline = Instant::now() + patience(PATIENCE);
        loop {
            let answer = self.http_get(port, path);
            if let Some(accepted) = answer.as_ref().ok().and_then(&accept) {
                return Ok(accepted);
            }
            if Instant::now() > deadline || self.exit_status().is_some() {
                bail!("the last answer to {path} was {answer:?}\n{}", self.log());
            }
            thread::sleep(patience(POLL));
        }
    }

    /// Waits until the agent has ended by itself, and tells how.
    pub fn wait_for_end(&self) -> Result<ExitStatus> {
        let status = self.shared.wait(patience(PATIENCE), |state| state.exit);
        status.with_context(|| format!("the agent does not end\n{}", self.log()))
    }

    /// The agent's process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.shared.lock().exit
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

    /// Asks the agent to read its configuration again (SIGHUP).
    pub fn hang_up(&self) -> Result<()> {
        self.signal(Signal::SIGHUP)
    }

    /// Asks the agent to end as Ctrl-C does (SIGINT).
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::SIGINT)
    }

    /// All that the agent has logged.
    pub fn log(&self) -> String {
        self.shared.lock().log.clone()
    }

    /// Waits until a line of the log contains all of these words, and returns that line.
    pub fn wait_for_log(&self, words: &[&str]) -> Result<String> {
        self.wait_for_log_within(patience(PATIENCE), words)
    }

    /// The same for what takes longer than usual.
    pub fn wait_for_log_within(&self, patience: Duration, words: &[&str]) -> Result<String> {
        let found = self.shared.wait(patience, |state| {
            let mut lines = state.log.lines();
            lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        });
        found.with_context(|| format!("no line of the log has all of {words:?}:\n{}", self.log()))
    }

    fn end(&self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal)?;
        let status = self.shared.wait(patience(PATIENCE), |state| state.exit);
        status.with_context(|| format!("the agent ignores {signal}\n{}", self.log()))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        // The lock keeps the supervisor from reaping, so the number still means the agent.
        let state = self.shared.lock();
        if state.exit.is_none() {
            kill(self.pid, signal)?;
        }
        Ok(())
    }
}

impl Drop for Agent {
    #[allow(clippy::print_stderr, reason = "the harness shows stderr of a failed test only")]
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGKILL);
        let _ = self.supervisor.take().map(JoinHandle::join);
        if thread::panicking() {
            eprintln!("── log of the agent ──\n{}", self.log());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until `find` finds something in the state. After the agent's end there is nothing
    /// more to wait for.
    fn wait<T>(&self, patience: Duration, find: impl Fn(&State) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(found) = find(&state) {
                return Some(found);
            }
            if state.exit.is_some() || left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    /// Collects the log, then the exit status.
    fn supervise(&self, mut child: Child) {
        let stderr = child.stderr.take().map(BufReader::new);
        for line in stderr.into_iter().flat_map(|stderr| stderr.split(b'\n')).map_while(Result::ok)
        {
            let mut state = self.lock();
            state.log.push_str(&String::from_utf8_lossy(&line));
            state.log.push('\n');
            self.changed.notify_all();
        }
        let id = Id::Pid(Pid::from_raw(child.id() as i32));
        let _ = waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        let mut state = self.lock();
        state.exit = child.wait().ok();
        self.changed.notify_all();
    }
}
