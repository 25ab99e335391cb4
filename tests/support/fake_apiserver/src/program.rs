//! Programs of others that tests need.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{HEALTH_PORT, Netns, http_get, patience};

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that runs until it is dropped.
pub struct Program {
    log: PathBuf,
    pid: u32,
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    supervisor: Option<JoinHandle<()>>,
}

impl Program {
    /// Starts it in a network namespace; what it says goes into a file of that folder.
    pub fn start(
        netns: &Netns,
        program: &Path,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = folder.join(format!("{name}.log"));
        let mut command = netns.command(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log)?);
        let (stop, stopped) = mpsc::channel();
        let (started, start) = mpsc::channel();
        // The program dies with the thread that starts it, hence one that lives as long.
        let supervisor = thread::Builder::new().name(name).spawn(move || {
            match command.spawn() {
                Ok(child) => {
                    let _ = started.send(Ok(child.id()));
                    supervise(child, &stopped);
                }
                Err(error) => drop(started.send(Err(error))),
            };
        })?;
        let pid = start.recv()?;
        let pid = pid.with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { log, pid, stop: Some(stop), supervisor: Some(supervisor) })
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid as i32
    }

    /// Waits until it is healthy, if it is kube-proxy.
    pub fn wait_ready(&self, netns: &Netns) -> Result<()> {
        let (start, address) = (Instant::now(), ([127, 0, 0, 1], HEALTH_PORT).into());
        while !http_get(netns, address, "/healthz").is_ok_and(|answer| answer.status == 200) {
            ensure!(
                start.elapsed() < patience(PATIENCE) && !self.has_ended(),
                "kube-proxy does not start:\n{}",
                self.log()?
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.supervisor.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What it has said.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.supervisor.take().map(JoinHandle::join);
    }
}

/// Waits until the program has ended, or shall.
fn supervise(mut child: Child, stopped: &mpsc::Receiver<()>) {
    let poll = Duration::from_millis(50);
    while matches!(child.try_wait(), Ok(None)) {
        if stopped.recv_timeout(poll) == Err(mpsc::RecvTimeoutError::Disconnected) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
