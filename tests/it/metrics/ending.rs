//! The agent ends at once when it is asked to, in every phase.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, mkfifo};
use shunt_fake_apiserver::Kubeconfig;
use shunt_testbed::{Agent, AgentBuilder, Occupier, Service, TempDir, eventually};

use crate::world::{SHUNT, World, http_service, http_slices};

/// How long the agent may take to end.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Runs a test for an agent that is the first process of its namespace, as in a container, and for
/// another: a first process gets no signal that it has not asked for.
fn as_any_process(
    test: impl Fn(&(dyn Fn(AgentBuilder) -> Result<Process> + Sync)) -> Result<()>,
) -> Result<()> {
    test(&|agent| Process::of(agent.spawn()?, false))?;
    let first = ["unshare", "--pid", "--fork", "--kill-child", "--"];
    test(&|agent| Process::of(agent.wrapper(&first).spawn()?, true))
}

/// An agent, and the process that it is: with unshare, the child of the one that was started.
struct Process {
    agent: Agent,
    pid: i32,
}

impl Process {
    fn of(agent: Agent, is_first: bool) -> Result<Process> {
        let parent = agent.pid();
        if !is_first {
            return Ok(Process { agent, pid: parent });
        }
        let pid = eventually("the child of unshare", || {
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
            let Ok(child) = children.trim().parse() else { return Ok(None) };
            // Before it has executed the agent, it is not that.
            let program = fs::read_link(format!("/proc/{child}/exe"));
            Ok(program.is_ok_and(|program| program.ends_with("shunt")).then_some(child))
        })?;
        Ok(Process { agent, pid })
    }

    /// Asks it to end, which it does at once and with this code.
    fn ends(self, signal: Signal, code: i32) -> Result<()> {
        let start = Instant::now();
        kill(Pid::from_raw(self.pid), signal)?;
        let status = self.agent.wait_for_end()?;
        let took = start.elapsed();
        ensure!(took < AT_ONCE, "it took {took:?}\n{}", self.agent.log());
        assert_eq!(status.code(), Some(code), "{}", self.agent.log());
        Ok(())
    }
}

/// A node with a Service.
fn world_with_web() -> Result<World> {
    let world = World::empty()?;
    let web = http_service("web", &["10.96.0.10", "fd00:96::10"]);
    let slices = http_slices("web", &[&world.lab.pod1]);
    world.manifests.write("web.yaml", format!("{web}{slices}"))?;
    Ok(world)
}

#[test]
fn it_ends_while_it_waits_for_another_agent() -> Result<()> {
    let world = world_with_web()?;
    let _first = world.plain_agent().start()?;
    as_any_process(|spawn| {
        let process = spawn(world.plain_agent())?;
        process.agent.wait_for_log(&["waiting until it ends"])?;
        process.ends(Signal::SIGTERM, 0)
    })
}

#[test]
fn it_ends_while_it_reads_its_configuration() -> Result<()> {
    let (world, scratch) = (World::empty()?, TempDir::new()?);
    let pipe = scratch.path().join("config.yaml");
    mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    as_any_process(|spawn| {
        let agent = Agent::builder(SHUNT, &world.lab.node);
        let process = spawn(agent.arg("--config").arg(pipe.display().to_string()))?;
        // It can be opened once the agent reads it.
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        let _writer = eventually("a reader", || Ok(options.open(&pipe).ok()))?;
        process.ends(Signal::SIGINT, 0)
    })
}

#[test]
fn it_ends_while_it_waits_for_the_api_server() -> Result<()> {
    as_any_process(|spawn| {
        for (once, code) in [(false, 0), (true, 1)] {
            let world = World::empty()?;
            // It takes connections and says nothing.
            let server = world.lab.node.run(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
            let kubeconfig = Kubeconfig::new(&format!("http://{}", server.local_addr()?))?;
            let kubeconfig = kubeconfig.token("t")?;
            let agent = Agent::builder(SHUNT, &world.lab.node).arg("--kubeconfig");
            let mut agent = agent.arg(kubeconfig.path().display().to_string());
            if once {
                agent = agent.arg("--once");
            }
            // It connects from where it was started, which is not the node.
            let process = world.lab.node.run(|| spawn(agent))?;
            let (mut connection, _) = server.accept()?;
            connection.read_exact(&mut [0])?;
            process.ends(Signal::SIGTERM, code)?;
        }
        Ok(())
    })
}

#[test]
fn it_ends_while_it_reads_manifests() -> Result<()> {
    let world = World::empty()?;
    let service = |n| Service::new(&format!("s{n}")).cluster_ips(&["10.96.0.1"]).to_string();
    world.manifests.write("large.yaml", (0..20_000).map(service).collect::<String>())?;
    as_any_process(|spawn| {
        for (once, code) in [(false, 0), (true, 1)] {
            let agent = world.plain_agent();
            let process = spawn(if once { agent.arg("--once") } else { agent })?;
            let stat = format!("/proc/{}/statm", process.pid);
            // It has read the file and makes objects of it.
            eventually("much memory", || {
                let pages = fs::read_to_string(&stat)?;
                let resident: Option<usize> =
                    pages.split(' ').nth(1).and_then(|it| it.parse().ok());
                Ok(resident.filter(|resident| *resident > 6_000))
            })?;
            process.ends(Signal::SIGTERM, code)?;
        }
        Ok(())
    })
}

#[test]
fn it_ends_while_its_first_commit_fails() -> Result<()> {
    as_any_process(|spawn| {
        let world = world_with_web()?;
        world.plain_agent().arg("--own-tables=false").once()?;
        let _occupier = Occupier::enter(&world.lab.node)?;
        let process = spawn(world.plain_agent())?;
        process.agent.wait_for_log(&["nothing was programmed"])?;
        process.ends(Signal::SIGTERM, 0)
    })
}
