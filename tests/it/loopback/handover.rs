//! Listeners pass from an ending agent to one that waits for its lock.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use shunt_testbed::{Agent, Scratch};

use super::{BOTH, PATIENCE, PODS, V4, V6, wait_for};
use crate::world::{SHUNT, World, run_shunt, status_json};

/// What became of connections, one after the other.
#[derive(Debug, Default)]
struct Count {
    served: usize,
    refused: usize,
    /// The connection was open, and the agent ended before the answer.
    cut: usize,
}

/// Ends the clients, also those of a test that fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects until the end.
fn connect_until(world: &World, end: &AtomicBool) -> Result<Count> {
    let to: SocketAddr = V4.parse()?;
    world.lab.node.run(|| {
        let mut count = Count::default();
        while !end.load(Ordering::Relaxed) {
            let mut stream = match TcpStream::connect_timeout(&to, PATIENCE) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    count.refused += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            stream.set_read_timeout(Some(PATIENCE))?;
            match stream.read(&mut [0; 64]) {
                Ok(1..) => count.served += 1,
                Ok(0) => count.cut += 1,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => count.cut += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    })
}

/// Starts an agent that waits for the lock, and can inherit.
fn heir(world: &World, config: &str) -> Result<Agent> {
    let agent = world.agent(config)?.spawn()?;
    agent.wait_for_log(&["waiting until it ends"])?;
    Ok(agent)
}

/// Ends an agent that has an heir, as soon as it knows that.
fn hand_over(agent: Agent, heirs: usize) -> Result<()> {
    let count = || agent.log().matches("another shunt waits until this one ends").count();
    wait_for("the heirs", || Ok((count() == heirs).then_some(())))?;
    agent.stop()
}

#[test]
fn no_connection_is_refused_while_the_next_agent_takes_over() -> Result<()> {
    let world = World::with_web()?;
    let first = world.agent(BOTH)?.start()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    let second = heir(&world, BOTH)?;
    let end = AtomicBool::new(false);
    let count = thread::scope(|scope| -> Result<Count> {
        let clients = scope.spawn(|| connect_until(&world, &end));
        let ending = SetOnDrop(&end);
        hand_over(first, 1)?;
        second.wait_ready()?;
        for address in [V6, V4] {
            world.lab.from(&world.lab.node).tcp(address).eventually().reaches(&PODS);
        }
        drop(ending);
        clients.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    })?;
    ensure!(count.refused == 0 && count.served > 0 && count.cut <= 1, "{count:?}");
    assert_eq!(status_json(&world.lab.node)?["loopback"]["listening"], 2);
    assert!(!second.log().contains("cannot listen"), "{}", second.log());
    second.stop()
}

/// The end takes longer than the next agent's attempts to get the lock.
#[test]
fn no_connection_is_refused_if_the_log_of_the_ending_agent_is_a_full_pipe() -> Result<()> {
    let world = World::with_web()?;
    let scratch = Scratch::new()?;
    let path = scratch.path().join("log");
    mkfifo(&path, Mode::S_IRWXU)?;
    let mut log =
        File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
    let redirect = format!("exec \"$@\" 2>{}", path.display());
    let first = world.agent(BOTH)?.wrapper(&["sh", "-c", &redirect, "sh"]).start()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    let second = heir(&world, BOTH)?;
    let mut lines = Vec::new();
    wait_for("the heir", || {
        let mut some = [0; 4096];
        match log.read(&mut some) {
            Ok(count) => lines.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let lines = String::from_utf8_lossy(&lines);
        Ok(lines.contains("another shunt waits until this one ends").then_some(()))
    })?;
    for size in [4096, 1] {
        while log.write(&vec![b'.'; size]).is_ok() {}
    }
    let end = AtomicBool::new(false);
    let count = thread::scope(|scope| -> Result<Count> {
        let clients = scope.spawn(|| connect_until(&world, &end));
        let ending = SetOnDrop(&end);
        first.stop()?;
        second.wait_ready()?;
        world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
        drop(ending);
        clients.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    })?;
    ensure!(count.refused == 0 && count.served > 0 && count.cut <= 1, "{count:?}");
    second.stop()
}

#[test]
fn agent_that_does_not_get_the_lock_keeps_no_port_open() -> Result<()> {
    let world = World::with_web()?;
    let first = world.agent(BOTH)?.start()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    let heirs = [heir(&world, BOTH)?, heir(&world, BOTH)?];
    hand_over(first, 2)?;
    let pid = wait_for("the next agent", || {
        let status = status_json(&world.lab.node);
        Ok(status.ok().and_then(|it| it["process"].as_i64()))
    })?;
    let acts = heirs.iter().find(|it| i64::from(it.pid()) == pid).context("no such agent")?;
    acts.wait_ready()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    world.manifests.remove("web.yaml")?;
    for address in [V4, V6] {
        world.lab.from(&world.lab.node).tcp(address).eventually().refused();
    }
    Ok(())
}

#[test]
fn inherited_listeners_that_are_not_wanted_are_closed() -> Result<()> {
    let world = World::with_web()?;
    let first = world.agent(BOTH)?.start()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    let second = heir(&world, "mode: nftables\n")?;
    hand_over(first, 1)?;
    second.wait_ready()?;
    for address in [V4, V6] {
        world.lab.from(&world.lab.node).tcp(address).eventually().refused();
    }
    second.stop()
}

#[test]
fn killed_agent_hands_nothing_over() -> Result<()> {
    let world = World::with_web()?;
    let first = world.agent(BOTH)?.start()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    let second = heir(&world, BOTH)?;
    first.kill()?;
    second.wait_ready()?;
    world.lab.from(&world.lab.node).tcp(V4).eventually().reaches(&PODS);
    second.stop()
}

/// Two pods on a node: the probe of each must judge its own agent.
#[test]
fn startup_probe_succeeds_for_an_agent_that_has_programmed_or_that_waits() -> Result<()> {
    let world = World::with_web()?;
    let node = &world.lab.node;
    let same_container = || -> Result<(bool, String)> {
        let output = run_shunt(node, &["status", "--startup-probe"])?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    // The process of the agent is not visible in the new namespace of process IDs.
    let other_container = || -> Result<(bool, String)> {
        let mut command = node.command("unshare");
        command.args(["--pid", "--fork", SHUNT, "status", "--startup-probe"]);
        let output = command.output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let fails = |probe: &dyn Fn() -> Result<(bool, String)>, why: &str| -> Result<()> {
        let (is_started, log) = probe()?;
        ensure!(!is_started && log.contains(why), "{log}");
        Ok(())
    };
    fails(&same_container, "no shunt")?;
    // Nothing listens there, so nothing is listed.
    let early = Agent::builder(SHUNT, node).arg("--master=http://127.0.0.1:9").spawn()?;
    wait_for("an answer", || Ok(same_container()?.1.contains("nothing has been").then_some(())))?;
    fails(&other_container, "none waits")?;
    early.stop()?;

    let first = world.agent(BOTH)?.start()?;
    ensure!(same_container()?.0);
    fails(&other_container, "none waits")?;
    let second = heir(&world, BOTH)?;
    wait_for("the heir", || Ok(other_container()?.0.then_some(())))?;
    let text = run_shunt(node, &["status"])?.stdout;
    ensure!(String::from_utf8_lossy(&text).contains("1 agent waits until this one ends"));
    second.stop()?;
    fails(&other_container, "none waits")?;
    ensure!(same_container()?.0);
    first.stop()
}
