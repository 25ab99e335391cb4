//! The picture of `shunt explain` on a terminal, from a real run in which one endpoint dies.

use std::fs;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anstyle_svg::Term;
use anyhow::{Context as _, Result, ensure};
use shunt_testbed::{Agent, EndpointSlice, Host, ManifestDir, Protocol, Service, Topology, probe};

const OUTPUT: &str = "docs/pictures";
/// The port of all endpoints.
const PORT: u16 = 8080;
/// How long the kernel may look for a neighbour.
const SEARCH: Duration = Duration::from_secs(90);
/// How long a client waits for an endpoint that may be dead.
const SENT: Duration = Duration::from_millis(50);

/// Makes the pictures with this agent.
pub(crate) fn draw(shunt: &Path) -> Result<()> {
    let lab = Topology::new()?;
    let frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
    let _servers = lab.serve(PORT)?;
    let manifests = ManifestDir::new()?;
    let service = Service::new("web").namespace("shop").cluster_ips(&["10.96.0.10"]);
    let service = service.port("http", Protocol::Tcp, 80);
    let slice = EndpointSlice::v4("web").namespace("shop").port("http", Protocol::Tcp, PORT);
    let slice = slice.hosts(&[&lab.pod1, &lab.pod2, &lab.pod3]);
    manifests.write("web.yaml", format!("{service}{slice}"))?;
    let agent = Agent::builder(shunt, &lab.node)
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
        .manifests(manifests.path())
        .start()?;
    let outcome = explain(shunt, &lab, &frontend);
    outcome.with_context(|| format!("the agent's log:\n{}", agent.log()))?;
    agent.stop()
}

/// Explains why a third of the connections of a client fails.
fn explain(shunt: &Path, lab: &Topology, client: &Host) -> Result<()> {
    // The kernel knows the neighbours that answered once.
    client.run(|| {
        for _ in 0..20 {
            probe(Protocol::Tcp, None, "10.96.0.10:80".parse()?, Duration::from_secs(2))?;
        }
        Ok(())
    })?;
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
        let size = |n| NonZeroU16::new(n).unwrap_or(NonZeroU16::MIN);
        let mut parser = vt100::Parser::new(size(rows), size(columns), 0);
        parser.process(text.as_bytes());
        Ok(parser)
    };
    lab.node2.ip("link set eth0 down")?;
    let words = "explain --from 10.244.0.10 --to 10.96.0.10:80";
    let deadline = Instant::now() + SEARCH;
    loop {
        // The kernel looks for a neighbour when it has a packet for it.
        client.run(|| {
            for _ in 0..10 {
                let _ = probe(Protocol::Tcp, None, "10.96.0.10:80".parse()?, SENT)?;
            }
            Ok(())
        })?;
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
