//! The pictures of commands on a terminal, from real runs: numbers differ from run to run.
//!
//! The agent programs the testbed's node, and clients connect to its Services. One endpoint dies on the
//! way.

use std::fs;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anstyle_svg::Term;
use anyhow::{Context as _, Result, ensure};
use shunt_testbed::{Agent, EndpointSlice, Host, ManifestDir, Protocol, Service, Topology, probe};

const OUTPUT: &str = "docs/pictures";
/// The port of all endpoints.
const PORT: u16 = 8080;
/// `shunt top` has graphs of the last minute.
const TOP: &str = "64";
/// What `shunt top` says when it leaves: the screen of before is shown again.
const LEAVE: &str = "\x1b[?1049l";
/// How long the kernel may look for a neighbour.
const SEARCH: Duration = Duration::from_secs(90);

/// A Service with clients: its namespace, name, ClusterIP, port, and their mean pause in milliseconds.
type Load = (&'static str, &'static str, &'static str, u16, u64);

const LOADS: [Load; 6] = [
    ("shop", "web", "10.96.0.10", 80, 4),
    ("shop", "cart", "10.96.0.20", 80, 12),
    ("shop", "search", "10.96.0.30", 9200, 9),
    ("shop", "checkout", "10.96.0.40", 443, 40),
    ("kube-system", "kube-dns", "10.96.0.53", 53, 20),
    ("monitoring", "prometheus", "10.96.0.60", 9090, 250),
];

/// Makes the pictures with this agent.
pub(crate) fn draw(shunt: &Path) -> Result<()> {
    let lab = Topology::new()?;
    let frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
    let _servers = lab.serve(PORT)?;
    let manifests = ManifestDir::new()?;
    for (namespace, name, address, port, _) in LOADS {
        let service = Service::new(name).namespace(namespace).cluster_ips(&[address]);
        let service = service.port("http", Protocol::Tcp, port);
        let slice = EndpointSlice::v4(name).namespace(namespace).port("http", Protocol::Tcp, PORT);
        let slice = slice.hosts(&[&lab.pod1, &lab.pod2, &lab.pod3]);
        manifests.write(&format!("{name}.yaml"), format!("{service}{slice}"))?;
    }
    let agent = Agent::builder(shunt, &lab.node)
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
        .manifests(manifests.path())
        .start()?;
    let enough = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let clients = LOADS.iter().map(|load| scope.spawn(|| connect(load, &frontend, &enough)));
        let clients: Vec<_> = clients.collect();
        let outcome = pictures(shunt, &lab);
        enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        outcome
    });
    outcome.with_context(|| format!("the agent's log:\n{}", agent.log()))?;
    agent.stop()
}

/// Connects until this is enough, at a rate that rises and falls.
fn connect((_, _, address, port, pause): &Load, client: &Host, enough: &AtomicBool) -> Result<()> {
    let to = format!("{address}:{port}").parse()?;
    let began = Instant::now();
    client.run(|| {
        while !enough.load(Ordering::Relaxed) {
            probe(Protocol::Tcp, None, to, Duration::from_secs(2))?;
            let wave = (began.elapsed().as_secs_f64() / 7.0 + f64::from(*port)).sin();
            thread::sleep(Duration::from_millis(*pause).mul_f64(1.0 + 0.5 * wave));
        }
        Ok(())
    })
}

fn pictures(shunt: &Path, lab: &Topology) -> Result<()> {
    // The program gets a terminal of this size from `script`.
    let screen = |words: &str, rows: u16, columns: u16| -> Result<vt100::Parser> {
        let line = format!("stty rows {rows} columns {columns}; {words}");
        let mut command: Command = lab.node.command("script");
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env("SHUNT", shunt);
        // At the end of its input, `script` would end the program.
        let (input, _open) = std::io::pipe()?;
        command.args(["--quiet", "--command", &line, "/dev/null"]).stdin(input);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = text.split(LEAVE).next().unwrap_or_default();
        let size = |n| NonZeroU16::new(n).unwrap_or(NonZeroU16::MIN);
        let mut parser = vt100::Parser::new(size(rows), size(columns), 0);
        parser.process(shown.as_bytes());
        Ok(parser)
    };
    let top = screen(&format!("timeout --foreground {TOP} \"$SHUNT\" top"), 13, 100)?;
    write("top", "shunt top", top.screen())?;

    lab.node2.ip("link set eth0 down")?;
    let words = "explain --from 10.244.0.10 --to 10.96.0.10:80";
    let deadline = Instant::now() + SEARCH;
    loop {
        let explained = screen(&format!("\"$SHUNT\" {words}"), 40, 134)?;
        if explained.screen().contents().contains("is unreachable") {
            return write("explain", &format!("shunt {words}"), explained.screen());
        }
        let shown = explained.screen().contents();
        ensure!(Instant::now() < deadline, "the endpoint is reachable:\n{shown}");
    }
}

/// Writes what a terminal shows, below the command.
fn write(name: &str, command: &str, screen: &vt100::Screen) -> Result<()> {
    let (_, columns) = screen.size();
    let used = screen.rows(0, columns.get()).collect::<Vec<_>>();
    let used = used.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
    let rows = screen.rows_formatted(0, columns.get()).take(used);
    let mut text = format!("\x1b[1;92m# {command}\x1b[0m\n");
    for row in rows {
        // Where nothing was written, vt100 moves the cursor instead.
        let mut parts = row.split("\x1b[");
        text += &format!("\x1b[0m\n{}", parts.next().unwrap_or_default());
        for part in parts {
            match part.split_once('C') {
                Some((count, rest)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                    text += &format!("{}{rest}", " ".repeat(count.parse().unwrap_or(1)));
                }
                _ => text += &format!("\x1b[{part}"),
            }
        }
    }
    ensure!(!screen.contents().trim().is_empty(), "{command} shows nothing");
    let path = format!("{OUTPUT}/{name}.svg");
    fs::write(&path, Term::new().render_svg(&text)).with_context(|| path.clone())?;
    println!("wrote {path}");
    Ok(())
}
