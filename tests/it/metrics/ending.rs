//! The agent ends at once when it is asked to, in every phase, and with an error when a thread of it
//! dies.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkfifo};
use shunt_testbed::{
    Exposition, HEALTH_PORT, METRICS_PORT, Netns, Occupier, Scratch, Service, http_get,
};

use super::exported::wait_for_services;
use crate::world::{SHUNT, World, http_service, http_slices};

/// How long the agent may take to end.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long it may take to come into a phase.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent as a process, which may be the first one of a process namespace, as in a container: such
/// a process gets no signal that it has not asked for.
struct Process {
    child: Child,
    agent: Pid,
    log: Arc<Mutex<String>>,
}

impl Process {
    fn start(ns: &Netns, is_first: bool, words: &[&str]) -> Result<Process> {
        let first = ["unshare", "--pid", "--fork", "--kill-child", "--", SHUNT];
        let program = if is_first { &first[..] } else { &first[5..] };
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).args(["run", "--hostname-override=node-1", "--netns"]);
        command.arg(ns.path()).args(words).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = child.stderr.take().context("a pipe")?;
        thread::spawn({
            let log = log.clone();
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    *log.lock().unwrap_or_else(PoisonError::into_inner) += &(line + "\n");
                }
            }
        });
        let own = child.id();
        let agent = match is_first {
            false => own,
            true => wait_for("the child of unshare", || {
                let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
                let child: Option<u32> = children.ok()?.trim().parse().ok();
                // Before it has executed the agent, it is not that.
                child.filter(|child| {
                    fs::read_link(format!("/proc/{child}/exe"))
                        .is_ok_and(|exe| exe.ends_with("shunt"))
                })
            })?,
        };
        Ok(Process { child, agent: Pid::from_raw(i32::try_from(agent)?), log })
    }

    fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait_for_log(&self, words: &str) -> Result<()> {
        wait_for(words, || self.log().contains(words).then_some(())).with_context(|| self.log())
    }

    /// Asks it to end, and returns how it did.
    fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        let start = Instant::now();
        kill(self.agent, signal)?;
        let status = wait_for("the end", || self.child.try_wait().transpose());
        let took = start.elapsed();
        ensure!(took < AT_ONCE, "it took {took:?}: {status:?}\n{}", self.log());
        Ok(status??)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        ensure!(start.elapsed() < PATIENCE, "there is no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A node with a Service.
fn world_with_web() -> Result<World> {
    let world = World::empty()?;
    let web = http_service("web", &["10.96.0.10", "fd00:96::10"]);
    world
        .manifests
        .write("web.yaml", format!("{web}{}", http_slices("web", &[&world.lab.pod1])))?;
    Ok(world)
}

/// Runs a test for an agent that is the first process of its namespace, and for another.
fn as_any_process(test: impl Fn(bool) -> Result<()>) -> Result<()> {
    [false, true].into_iter().try_for_each(test)
}

#[test]
fn it_ends_while_it_waits_for_another_agent() -> Result<()> {
    let world = world_with_web()?;
    let _first = world.plain_agent().start()?;
    let manifests = world.manifests.path().display().to_string();
    as_any_process(|is_first| {
        let agent = Process::start(&world.lab.node, is_first, &["--manifests", &manifests])?;
        agent.wait_for_log("waiting until it ends")?;
        assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(0));
        Ok(())
    })
}

#[test]
fn it_ends_while_it_reads_its_configuration() -> Result<()> {
    let scratch = Scratch::new()?;
    let pipe = scratch.path().join("config.yaml");
    mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    let path = pipe.display().to_string();
    as_any_process(|is_first| {
        let ns = Netns::new()?;
        let agent = Process::start(&ns, is_first, &["--config", &path])?;
        // It can be opened once the agent reads it.
        let _writer = wait_for("a reader", || open_for_writing(&pipe))?;
        assert_eq!(agent.end(Signal::SIGINT)?.code(), Some(0));
        Ok(())
    })
}

fn open_for_writing(pipe: &Path) -> Option<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe).ok()
}

/// A server that takes connections and says nothing.
fn silent_server(world: &World) -> Result<(TcpListener, Scratch, String)> {
    let listener = world.lab.node.run(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
    let scratch = Scratch::new()?;
    let file = scratch.path().join("kubeconfig");
    let server = listener.local_addr()?;
    fs::write(
        &file,
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, \
             clusters: [{{name: c, cluster: {{server: 'http://{server}'}}}}], \
             users: [{{name: u, user: {{token: t}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"
        ),
    )?;
    let path = file.display().to_string();
    Ok((listener, scratch, path))
}

#[test]
fn it_ends_while_it_waits_for_the_api_server() -> Result<()> {
    as_any_process(|is_first| {
        for (once, code) in [(false, 0), (true, 1)] {
            let world = World::empty()?;
            let (server, _scratch, kubeconfig) = silent_server(&world)?;
            let mut words = vec!["--kubeconfig", &kubeconfig];
            words.extend(once.then_some("--once"));
            // It connects from where it was started, which is not the node.
            let agent = world.lab.node.run(|| Process::start(&world.lab.node, is_first, &words))?;
            let (mut connection, _) = server.accept()?;
            connection.read_exact(&mut [0])?;
            assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(code));
        }
        Ok(())
    })
}

#[test]
fn it_ends_while_it_reads_manifests() -> Result<()> {
    as_any_process(|is_first| {
        for (once, code) in [(false, 0), (true, 1)] {
            let world = World::empty()?;
            let services: String = (0..20_000)
                .map(|n| Service::new(&format!("s{n}")).cluster_ips(&["10.96.0.1"]).to_string())
                .collect();
            world.manifests.write("large.yaml", services)?;
            let manifests = world.manifests.path().display().to_string();
            let mut words = vec!["--manifests", &manifests];
            words.extend(once.then_some("--once"));
            let agent = Process::start(&world.lab.node, is_first, &words)?;
            let stat = format!("/proc/{}/statm", agent.agent);
            // It has read the file and makes objects of it.
            wait_for("much memory", || {
                let pages = fs::read_to_string(&stat).ok()?;
                let resident: usize = pages.split_whitespace().nth(1)?.parse().ok()?;
                (resident > 6_000).then_some(())
            })?;
            assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(code));
        }
        Ok(())
    })
}

#[test]
fn it_ends_while_its_first_commit_fails() -> Result<()> {
    as_any_process(|is_first| {
        let world = world_with_web()?;
        world.plain_agent().arg("--own-tables=false").once()?;
        let _occupier = Occupier::enter(&world.lab.node)?;
        let manifests = world.manifests.path().display().to_string();
        let agent = Process::start(&world.lab.node, is_first, &["--manifests", &manifests])?;
        agent.wait_for_log("nothing was programmed")?;
        assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(0));
        Ok(())
    })
}

/// What collects the log may hang, or be gone.
#[test]
fn unread_log_delays_neither_work_nor_end() -> Result<()> {
    let world = world_with_web()?;
    let manifests = world.manifests.path().display().to_string();
    let start = || -> Result<Process> {
        let mut command = Command::new(SHUNT);
        command.args(["run", "--hostname-override=node-1", "-v=4", "--manifests", &manifests]);
        command.arg("--netns").arg(world.lab.node.path());
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let agent = Pid::from_raw(i32::try_from(child.id())?);
        Ok(Process { child, agent, log: Arc::default() })
    };
    let ready = || {
        wait_for("answer", || {
            let stream = world.lab.node.run(|| Ok(TcpStream::connect(("127.0.0.1", HEALTH_PORT))?));
            stream.ok()
        })
    };
    // Gone.
    let mut agent = start()?;
    ready()?;
    drop(agent.child.stderr.take());
    for count in [2, 3] {
        let name = format!("more-{count}");
        world
            .manifests
            .write(&format!("{name}.yaml"), http_service(&name, &[&format!("10.96.0.{count}")]))?;
        wait_for("sync", || {
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
            let answer = http_get(&world.lab.node, to, "/metrics").ok()?;
            let scraped = Exposition::parse(&answer.body).ok()?;
            (scraped.value("shunt_services", &[]) == Some(f64::from(count))).then_some(())
        })?;
    }
    assert!(agent.child.try_wait()?.is_none());
    assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(0));

    // Full.
    let agent = start()?;
    ready()?;
    let pipe = agent.child.stderr.as_ref().context("a pipe")?;
    nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_SETPIPE_SZ(4096))?;
    // A write to a pipe with room is never seen so often in a row.
    let mut in_a_row = 0;
    wait_for("thread that waits for the pipe", || {
        let _ = kill(agent.agent, Signal::SIGHUP);
        in_a_row = if writes(agent.agent, "log") { in_a_row + 1 } else { 0 };
        (in_a_row == 20).then_some(())
    })?;
    assert_eq!(agent.end(Signal::SIGTERM)?.code(), Some(0));
    Ok(())
}

/// Returns true if the thread of that name is in the system call `write`.
fn writes(process: Pid, thread: &str) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|entry| {
        let read = |file| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let number = format!("{} ", libc::SYS_write);
        read("comm").trim() == thread && read("syscall").starts_with(&number)
    })
}

/// The library lets a call of the thread fail that never fails (see `tests/support/fault_preload`).
#[test]
fn panic_of_the_dataplane_thread_ends_the_process() -> Result<()> {
    let world = world_with_web()?;
    let scratch = Scratch::new()?;
    let stop = scratch.path().join("stop");
    let library = std::env::current_exe()?.with_file_name("libshunt_fault_preload.so");
    ensure!(
        library.is_file(),
        "{} is missing: run the test where cargo built it",
        library.display()
    );
    let preload = format!("LD_PRELOAD={}", library.display());
    let file = format!("SHUNT_STOP_CLOCK={}", stop.display());
    let agent = world.plain_agent().wrapper(&["env", &preload, &file]).start()?;
    wait_for_services(&agent, 1)?;
    let rules = world.lab.node.output("nft", &["--stateless", "list", "ruleset"])?;
    fs::write(&stop, "")?;
    let status = agent.wait_for_end()?;
    assert_eq!(status.code(), Some(1), "{}", agent.log());
    let line =
        agent.wait_for_log(&["ERROR", "a thread of the agent panicked", "the rules stay"])?;
    assert!(line.contains("thread=\"dataplane\""), "{line}");
    // Owned by nobody now, which is all that changed.
    let left = world.lab.node.output("nft", &["--stateless", "list", "ruleset"])?;
    assert!(left.contains("default/web:http"), "{left}");
    assert_eq!(
        left.lines().filter(|line| !line.contains("flags")).count(),
        rules.lines().filter(|line| !line.contains("flags")).count()
    );
    Ok(())
}
