//! The picture of `shunt explain` on a terminal, from a real run beside a firewall.

use std::fs;
use std::path::Path;

use anstyle_svg::Term;
use anyhow::{Context as _, Result, ensure};
use shunt_testbed::{Agent, EndpointSlice, ManifestDir, Protocol, Service, Topology};

const PICTURE: &str = "docs/pictures/explain.svg";
const WORDS: &str = "explain --from 10.244.0.10 --to 10.96.0.10:80";
const FIREWALL: &str = "table inet firewall {
    chain forward {
        type filter hook forward priority filter
        ct state established,related accept
        ip saddr 10.244.0.0/24 tcp dport 8080 drop
    }
}";

/// Makes the picture with this agent.
pub(crate) fn draw(shunt: &Path) -> Result<()> {
    let lab = Topology::new()?;
    let _frontend = lab.add_pod(&lab.node, "frontend", [10, 244, 0, 10], "fd00:244::10")?;
    lab.node.nft(FIREWALL)?;
    let manifests = ManifestDir::new()?;
    let service = Service::new("web").namespace("shop").cluster_ips(&["10.96.0.10"]);
    let service = service.port("http", Protocol::Tcp, 80);
    let slice = EndpointSlice::v4("web").namespace("shop").port("http", Protocol::Tcp, 8080);
    let slice = slice.hosts(&[&lab.pod1, &lab.pod3]);
    manifests.write("web.yaml", format!("{service}{slice}"))?;
    let agent = Agent::builder(shunt, &lab.node)
        .arg("--cluster-cidr=10.244.0.0/16,fd00:244::/48")
        .manifests(manifests.path())
        .start()?;
    // The program gets a terminal of this size from `script`.
    let line = format!("stty rows 40 columns 110; \"$SHUNT\" {WORDS}");
    let mut command = lab.node.command("script");
    command.env("SHUNT", shunt).args(["--quiet", "--command", &line, "/dev/null"]);
    // At the end of its input, `script` would end the program.
    let (input, _open) = std::io::pipe()?;
    let output = command.stdin(input).output()?;
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    ensure!(text.contains("DROPPED"), "{text}\nthe agent's log:\n{}", agent.log());
    let svg = Term::new().render_svg(&format!("\x1b[1;92m# shunt {WORDS}\x1b[0m\n\n{text}"));
    fs::write(PICTURE, svg).context(PICTURE)?;
    println!("wrote {PICTURE}");
    agent.stop()
}
