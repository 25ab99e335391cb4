//! A log that nobody reads: standard error is a full pipe.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use shunt_testbed::{AgentBuilder, Host, Service, TempDir};

use crate::world::{CLUSTER_CIDR, World, http_service, http_slices, status_json};

/// Standard error of an agent: a pipe that is read only when the test does so.
struct Stderr {
    pipe: File,
    path: String,
    _scratch: TempDir,
}

impl Stderr {
    fn new() -> Result<Stderr> {
        let scratch = TempDir::new()?;
        let path = scratch.path().join("stderr");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU)?;
        let mut options = OpenOptions::new();
        let pipe = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(4096))?;
        Ok(Stderr { pipe, path: path.display().to_string(), _scratch: scratch })
    }

    /// Lets the agent log here.
    fn of(&self, agent: AgentBuilder) -> AgentBuilder {
        let redirect = format!("exec \"$@\" 2> '{}'", self.path);
        agent.wrapper(&["sh", "-c", &redirect, "sh"])
    }

    /// Fills the pipe, so that the next line does not fit.
    fn fill(&self) -> Result<()> {
        loop {
            match (&self.pipe).write(b"\n") {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads until a line contains these words, and returns that line.
    fn line(&self, words: &str) -> Result<String> {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        let deadline = std::time::Instant::now() + shunt_testbed::patience(PATIENCE);
        loop {
            match (&self.pipe).read(&mut buffer) {
                Ok(length) => text.push_str(&String::from_utf8_lossy(&buffer[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            if let Some(line) = complete.lines().find(|line| line.contains(words)) {
                return Ok(line.to_owned());
            }
            ensure!(std::time::Instant::now() < deadline, "no line with {words:?}:\n{text}");
        }
    }
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Writes many Services whose address another Service has: a warning each.
fn write_conflicts(world: &World, file: &str, count: usize) -> Result<()> {
    let services = (0..count).map(|n| {
        let name = format!("{file}-{n}-{}", "x".repeat(40));
        http_service(&name, &["10.96.0.10"]).metadata("creationTimestamp: 2999-01-01T00:00:00Z")
    });
    let services: String = services.map(|service: Service| service.to_string()).collect();
    world.manifests.write(&format!("{file}.yaml"), services)
}

/// Writes a Service on this pod, and waits until it works.
fn write_late(world: &World, pod: &Host) -> Result<()> {
    let content =
        format!("{}{}", http_service("late", &["10.96.0.99"]), http_slices("late", &[pod]));
    world.manifests.write("late.yaml", content)?;
    world
        .lab
        .from(&world.lab.client)
        .tcp("10.96.0.99:80")
        .times(4)
        .eventually()
        .reaches(&[&pod.name]);
    Ok(())
}

/// What collects the log is gone.
#[test]
fn log_that_nobody_can_read_delays_nothing() -> Result<()> {
    let world = World::with_web()?;
    let stderr = Stderr::new()?;
    let agent = stderr.of(world.agent(CLUSTER_CIDR)?.arg("-v=4")).start()?;
    drop(stderr);
    write_late(&world, &world.lab.pod1)?;
    assert!(agent.is_running());
    agent.stop()
}

#[test]
fn changes_reach_the_kernel_although_nobody_reads_the_warnings() -> Result<()> {
    let world = World::with_web()?;
    let stderr = Stderr::new()?;
    // From the start.
    stderr.fill()?;
    let agent = stderr.of(world.agent(CLUSTER_CIDR)?).start()?;
    world.assert_web_works();
    // More than fits the queue.
    write_conflicts(&world, "conflicting", 4_000)?;
    write_late(&world, &world.lab.pod1)?;
    write_late(&world, &world.lab.pod2)?;
    let name = "shunt_log_lines_lost_total";
    let scraped = agent.wait_for_sample(name, &[], |lost| lost > 0.0)?;
    let lost = scraped.value(name, &[]).context("no number")?;
    let status = status_json(&world.lab.node)?;
    let told = status["lostLogLines"].as_f64().context("no number")?;
    ensure!(told >= lost, "{status:#}");
    let warnings = status["warnings"].to_string();
    ensure!(warnings.contains("log lines were lost"), "{warnings}");

    // The reader comes back.
    let line = stderr.line("log lines were lost")?;
    ensure!(line.contains("WARN") && line.contains("lines="), "{line}");
    agent.stop()
}
