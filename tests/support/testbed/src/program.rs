//! Programs that run beside a test: started, watched, stopped or killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::patience::patience;

/// How long a program may take to end, or to log what a test waits for: long enough that on a busy
/// machine, too, it means that it never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program. It is killed on drop, and by the kernel when this process dies. Dropped during
/// a panic, it shows its log.
pub struct Program {
    pid: Pid,
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
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

impl Program {
    /// Starts it. Its log is what it says on standard error.
    pub fn start(mut command: Command) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (started, start) = mpsc::channel();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let supervisor = {
            let shared = Arc::clone(&shared);
            // The program dies with the thread that starts it, hence one that lives as long.
            thread::Builder::new().name("program".into()).spawn(move || match command.spawn() {
                Ok(child) => {
                    let _ = started.send(Ok(Pid::from_raw(child.id() as i32)));
                    shared.supervise(child);
                }
                Err(error) => {
                    let _ = started.send(Err(error).with_context(|| format!("{command:?}")));
                }
            })?
        };
        let pid = start.recv()?.context("cannot start a program")?;
        Ok(Self { pid, shared, supervisor: Some(supervisor) })
    }

    /// Waits until it has ended, and tells how.
    pub fn wait_for_end(&self) -> Result<ExitStatus> {
        let status = self.shared.wait(patience(PATIENCE), |state| state.exit);
        status.with_context(|| format!("the program does not end\n{}", self.log()))
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The bytes of memory that it has at the moment (`VmRSS`).
    pub fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
        Ok(kib.parse::<u64>()? << 10)
    }

    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.shared.lock().exit
    }

    /// All that it has logged.
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

    /// Sends it a signal, if it still runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // The lock keeps the supervisor from reaping, so the number still means the program.
        let state = self.shared.lock();
        if state.exit.is_none() {
            kill(self.pid, signal)?;
        }
        Ok(())
    }
}

impl Drop for Program {
    #[allow(clippy::print_stderr, reason = "the harness shows stderr of a failed test only")]
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGKILL);
        let _ = self.supervisor.take().map(JoinHandle::join);
        if thread::panicking() {
            eprintln!("── log ──\n{}", self.log());
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
