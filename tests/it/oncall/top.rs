//! `shunt top`: what it shows is what the kernel has counted, and the terminal is as before.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;
use serde_json::{Value, json};
use shunt_testbed::{Connection, Netns};

use crate::world::{SHUNT, World, http_service, http_slices, run_shunt};

/// Waits as long as tests wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

fn with_services() -> Result<World> {
    let world = World::new()?;
    for (name, number) in [("busy", 41), ("idle", 42), ("quiet", 43)] {
        let ips = [format!("10.96.0.{number}"), format!("fd00:96::{number}")];
        let service = http_service(name, &[&ips[0], &ips[1]]);
        let slices = http_slices(name, &[&world.lab.pod1]);
        world.manifests.write(&format!("{name}.yaml"), format!("{service}{slices}"))?;
    }
    Ok(world)
}

fn connect(world: &World, to: &str, times: usize) -> Result<Vec<Connection>> {
    (0..times).map(|_| world.lab.from(&world.lab.client).connect(to)).collect()
}

/// Starts `shunt top --once` with an interval of some seconds.
fn once(ns: &Netns, more: &[&str]) -> Result<Child> {
    let mut command = Command::new(SHUNT);
    command.args(["top", "--once", "--interval=3"]).args(more).arg("--netns").arg(ns.path());
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits until the command has taken its first sample: then it sleeps until the second.
fn wait_for_sleep(child: &Child) -> Result<()> {
    let start = Instant::now();
    loop {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id()))?;
        let number = call.split(' ').next().and_then(|number| number.parse::<i64>().ok());
        if number == Some(libc::SYS_clock_nanosleep) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the command does not sleep: {call}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_picture_has_the_busiest_services_first() -> Result<()> {
    let world = with_services()?;
    let agent = world.start()?;
    // It needs no agent.
    agent.stop()?;
    let _before = connect(&world, "10.96.0.43:80", 4)?;
    let top = once(&world.lab.node, &["--output=json", "-n", "2"])?;
    wait_for_sleep(&top)?;
    let _busy = [connect(&world, "10.96.0.41:80", 5)?, connect(&world, "[fd00:96::41]:80", 4)?];
    let _quiet = connect(&world, "10.96.0.43:80", 3)?;
    let output = top.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let picture: Value = serde_json::from_slice(&output.stdout)?;
    let interval = picture["intervalSeconds"].as_f64().context("an interval")?;
    ensure!(interval >= 3.0, "{picture:#}");
    let services = picture["services"].as_array().context("services")?;
    let names: Vec<&Value> = services.iter().map(|service| &service["name"]).collect();
    assert_eq!(names, ["busy", "quiet"]);
    for (service, new, all) in
        [(&services[0], 9.0, 9), (&services[1], 3.0, 7), (&picture, 12.0, 16)]
    {
        let rate = service["newConnectionsPerSecond"].as_f64().context("a rate")?;
        assert!((rate * interval - new).abs() < 1e-6, "{picture:#}");
        assert_eq!(service["newConnections"], all);
    }
    assert_eq!(services[0]["namespace"], json!("default"));
    Ok(())
}

#[test]
fn without_a_terminal_one_picture_is_printed() -> Result<()> {
    let world = with_services()?;
    let _agent = world.start()?;
    let output = run_shunt(&world.lab.node, &["top", "--interval=0.1"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[2], "default/busy        0.0/s             0", "{text}");

    let output = run_shunt(&Netns::new()?, &["top", "--once"])?;
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = "error: the kernel has no Service of shunt in this network namespace\n";
    assert_eq!(error, wanted);
    Ok(())
}

/// `shunt top` on a terminal.
struct Live {
    child: Child,
    keys: File,
    /// The other end, which shows the modes of the terminal.
    terminal: OwnedFd,
    output: Arc<Mutex<String>>,
}

impl Live {
    fn start(ns: &Netns) -> Result<Live> {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None)?;
        let mut command = Command::new(SHUNT);
        command.args(["top", "--interval=0.1", "--netns"]).arg(ns.path()).env("TERM", "xterm");
        command.stdin(pty.slave.try_clone()?).stdout(pty.slave.try_clone()?);
        let child = command.spawn()?;
        let (keys, mut screen) = (File::from(pty.master.try_clone()?), File::from(pty.master));
        let output = Arc::new(Mutex::new(String::new()));
        let own = output.clone();
        // Ends with the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                own.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Ok(Live { child, keys, terminal: pty.slave, output })
    }

    fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn wait_for(&self, text: &str) -> Result<()> {
        let start = Instant::now();
        while !self.output().contains(text) {
            ensure!(start.elapsed() < PATIENCE, "no {text:?} in {:?}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The characters on the screen: `top` moves the cursor and writes what has changed.
    fn screen(&self) -> String {
        let mut cells = vec![[' '; 100]; 24];
        let (mut row, mut column) = (0, 0);
        let output = self.output();
        let mut rest = output.chars();
        while let Some(letter) = rest.next() {
            if letter != '\x1b' {
                if let Some(cell) =
                    cells.get_mut(row).and_then(|row: &mut [_; 100]| row.get_mut(column))
                {
                    *cell = letter;
                }
                column += 1;
                continue;
            }
            // A control sequence ends with its letter.
            let mut sequence = String::new();
            for letter in rest.by_ref().skip(1) {
                sequence.push(letter);
                if letter.is_ascii_alphabetic() {
                    break;
                }
            }
            if let Some((to_row, to_column)) =
                sequence.strip_suffix('H').and_then(|place| place.split_once(';'))
                && let (Ok(to_row), Ok(to_column)) =
                    (to_row.parse::<usize>(), to_column.parse::<usize>())
            {
                (row, column) = (to_row.saturating_sub(1), to_column.saturating_sub(1));
            }
        }
        let line = |row: &[char; 100]| row.iter().collect::<String>().trim_end().to_owned() + "\n";
        cells.iter().map(line).collect()
    }

    fn wait_for_screen(&self, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_so(&self.screen()) {
            ensure!(start.elapsed() < PATIENCE, "still\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < PATIENCE, "it runs: {:?}", self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the terminal has its usual modes: it echoes, and has lines.
    fn is_usual(&self) -> Result<bool> {
        let modes = tcgetattr(self.terminal.as_fd())?.local_flags;
        Ok(modes.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn terminal_is_restored_on_every_end() -> Result<()> {
    const LEAVES: &str = "\x1b[?1049l";
    const SHOWS_CURSOR: &str = "\x1b[?25h";
    let world = with_services()?;
    let _agent = world.start()?;
    let signals = [None, Some(Signal::SIGTERM), Some(Signal::SIGINT), Some(Signal::SIGHUP)];
    for signal in signals {
        let mut live = Live::start(&world.lab.node)?;
        live.wait_for("default/quiet")?;
        assert!(!live.is_usual()?);
        match signal {
            None => live.keys.write_all(b"q")?,
            Some(signal) => kill(Pid::from_raw(i32::try_from(live.child.id())?), signal)?,
        }
        let status = live.wait_for_end()?;
        assert!(status.success(), "{signal:?}: {status}");
        live.wait_for(LEAVES)?;
        live.wait_for(SHOWS_CURSOR)?;
        assert!(live.is_usual()?, "{signal:?}");
    }
    Ok(())
}

#[test]
fn screen_follows_counters_and_keys() -> Result<()> {
    let world = with_services()?;
    let _agent = world.start()?;
    let mut live = Live::start(&world.lab.node)?;
    live.wait_for_screen(|screen| screen.contains(" 3 Services, by rate\n"))?;
    let _connections = connect(&world, "10.96.0.42:80", 7)?;
    let busiest = |screen: &str| {
        let first = screen.lines().nth(5).unwrap_or_default();
        first.starts_with("default/idle ") && first.contains("/s            7 ")
    };
    live.wait_for_screen(busiest)?;
    live.keys.write_all(b"/qu")?;
    live.wait_for_screen(|screen| screen.contains("\nfilter: qu_ "))?;
    live.keys.write_all(b"\rs")?;
    live.wait_for_screen(|screen| {
        screen.contains(", by connections, 1 contain \"qu\"\n") && !screen.contains("idle")
    })?;
    live.keys.write_all(b"p")?;
    live.wait_for_screen(|screen| screen.contains("\"  PAUSED\n"))?;
    live.keys.write_all(b"\x03")?;
    assert!(live.wait_for_end()?.success());
    Ok(())
}
