//! A server whose process is stopped (SIGSTOP): its kernel answers until the queue of the socket is full.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shunt_testbed::Host;

use super::endings::world_on;
use super::scene::{Scene, connect, connect_all, listen, rescued, times};
use crate::world::TARGET;

const VIP: &str = "10.96.0.20:80";
const PORT: u16 = 9_090;
/// Set in the process of the server.
const SERVER: &str = "SHUNT_LAB_SERVER";
/// How the server names itself to its clients.
const NAME: &str = "process";
/// The path of the test below, by which the test program is the server.
const TEST: &str = "unresponsive::stopped::stopped_process_is_ejected_and_comes_back";

/// A server in a process of its own, which dies with the thread that starts it.
struct Server(Child);

impl Server {
    fn start(pod: &Host) -> Result<Server> {
        let mut command = pod.command(env::current_exe()?);
        command.args(["--exact", TEST, "--nocapture"]).env(SERVER, "").stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let server = Server(child);
        let mut lines = output.lines().map_while(Result::ok);
        ensure!(lines.any(|line| line == "ready"), "the server ended before it listened");
        Ok(server)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.0.id().try_into()?), signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves until the process is killed.
#[allow(clippy::print_stdout, reason = "this is how the test learns that the server listens")]
fn serve() -> Result<()> {
    let listener = TcpListener::from(listen(PORT)?);
    listener.set_nonblocking(false)?;
    // The test harness may have begun a line.
    println!("\nready");
    loop {
        let (mut connection, _) = listener.accept()?;
        // The client may be gone since long.
        let _ = writeln!(connection, "{NAME} ");
    }
}

#[test]
fn stopped_process_is_ejected_and_comes_back() -> Result<()> {
    if env::var_os(SERVER).is_some() {
        return serve();
    }
    let world = world_on(|world| {
        let lab = &world.lab;
        vec![(&lab.pod1, TARGET), (&lab.pod2, TARGET), (&lab.pod3, PORT)]
    })?;
    let server = Server::start(&world.lab.pod3)?;
    let scene = Scene::start(world, "on")?;
    let lab = &scene.world.lab;
    let endpoint = SocketAddr::new(lab.pod3.ipv4[0].into(), PORT);
    let calls = times(4, &lab.pod2, VIP)?;
    // One after the other. Of several at once, the short queue may lose one: its SYN is answered with a
    // cookie, and then there is no room for it.
    let serves = |_: &Scene| Ok(connect(&lab.pod2, VIP.parse()?, rescued())? == NAME);
    scene.wait("the server is reached", serves)?;

    server.signal(Signal::SIGSTOP)?;
    scene.wait("ejected", |scene| {
        let _ = connect_all(&calls, Duration::from_millis(1_500));
        Ok(scene.in_state("ejected")? == [endpoint])
    })?;
    assert_eq!(scene.status()?["endpoints"][0]["reason"], "silentPort");
    let servers = connect_all(&times(12, &lab.pod2, VIP)?, rescued())?;
    assert!(!servers.contains(&NAME.to_owned()), "{servers:?}");

    server.signal(Signal::SIGCONT)?;
    scene.wait_ejected(&[])?;
    scene.wait("the server is reached again", serves)
}
