//! What others can name reaches no terminal and no log as it is.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Output;

use anyhow::Result;
use nfnetlink::Family;
use nfnetlink::nft::{BaseChain, Batch, ChainType, Expr, Hook, Kernel, Socket, Verdict};
use serde_json::{Value, json};
use shunt_testbed::{Agent, Netns, Node, Protocol, Service};

use super::trace::Trace;
use crate::world::{CLUSTER_CIDR, SHUNT, World, run_shunt, status_json};

/// Clears the screen, forges a line, and turns the text behind it around. A process can have it.
const NAME: &str = "\u{1b}[2J\nOK\u{9b}m\u{202e}x";
/// The same, escaped. JSON has it in this form, too.
const ESCAPED: &str = r"\u001b[2J\nOK\u009bm\u202ex";

/// Asserts that a text has the name in its escaped form only.
#[track_caller]
fn assert_escaped(text: &str) {
    let is_harmful =
        |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{202a}'..='\u{202e}'));
    assert!(!text.contains(is_harmful), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("OK\\u")), "{text}");
    assert!(text.contains(ESCAPED), "{text}");
}

fn printed(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

#[test]
fn name_of_a_process_is_escaped() -> Result<()> {
    let world = World::empty()?;
    let node = &world.lab.node;
    world.manifests.write("node.yaml", Node::of(node))?;
    let web = Service::new("web").cluster_ips(&["10.96.0.4"]);
    world.manifests.write("web.yaml", web.node_port("tcp", Protocol::Tcp, 80, 30_004))?;
    let listener = node.run(|| Ok(TcpListener::bind("0.0.0.0:30004")?))?;
    let _holder = node.holder(NAME, listener)?;
    let agent = world.agent(CLUSTER_CIDR)?.arg("--kube-proxy-check-period=100ms").start()?;
    agent.wait_for_log(&["WARN", "TCP node port 30004"])?;
    assert_escaped(&agent.log());
    while status_json(node)?["takenNodePorts"]["ports"] == Value::Array(Vec::new()) {}
    let manifests = format!("--manifests={}", world.manifests.path().display());
    for words in [
        &["status"][..],
        &["status", "--output=json"],
        &["check", &manifests],
        &["check", &manifests, "--output=json"],
    ] {
        assert_escaped(&printed(&run_shunt(node, words)?));
    }
    for output in ["text", "json"] {
        let to = ["explain", "--to=192.0.2.10:30004", "--output", output];
        assert_escaped(&printed(&node.command(SHUNT).args(to).output()?));
    }
    agent.stop()
}

/// A table, its chains and the comment of a rule that drops what the node forwards.
fn drop_forwarded(ns: &Netns) -> Result<()> {
    ns.run(|| {
        let mut batch = Batch::new(None);
        let (kind, hook) = (ChainType::Filter, Hook::Forward);
        batch.add_table(Family::Ip, NAME, 0, "");
        batch.add_chain(Family::Ip, NAME, NAME, Some(BaseChain { kind, hook, priority: 0 }));
        let inner = format!("{NAME}-2");
        batch.add_chain(Family::Ip, NAME, &inner, None);
        batch.add_rule(Family::Ip, NAME, &inner, &[Expr::Verdict(Verdict::Drop)], Some(NAME));
        batch.add_rule(Family::Ip, NAME, NAME, &[Expr::Verdict(Verdict::Jump(inner))], None);
        Ok(Socket::open()?.commit(&batch.finish())?)
    })
}

#[test]
fn names_and_comments_of_rules_are_escaped() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.start()?;
    drop_forwarded(&world.lab.node)?;
    let client = world.lab.client.ips().next().map(|it| it.to_string()).unwrap_or_default();
    for output in ["text", "json"] {
        let to = ["explain", "--to=10.96.0.10:80", "--from", &client, "--output", output];
        assert_escaped(&printed(&world.lab.node.command(SHUNT).args(to).output()?));
    }
    let trace = Trace::start(&world.lab.node, &["--to=10.96.0.10:80", "--count=1"])?;
    world.lab.from(&world.lab.client).tcp("10.96.0.10:80").dropped();
    assert_escaped(&printed(&trace.output()?));
    agent.stop()
}

#[test]
fn message_of_the_api_server_is_escaped() -> Result<()> {
    let world = World::empty()?;
    let node = &world.lab.node;
    let server = node.run(|| Ok(TcpListener::bind("127.0.0.1:0")?))?;
    let address = server.local_addr()?;
    let status = json!({"kind": "Status", "status": "Failure", "code": 500, "message": NAME});
    let body = status.to_string();
    let head = "Connection: close\r\nContent-Type: application/json";
    let length = body.len();
    let answer = format!("HTTP/1.1 500 No\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
    // Ends with the process.
    std::thread::spawn(move || -> Result<()> {
        loop {
            let (mut client, _) = server.accept()?;
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let agent = Agent::builder(SHUNT, node).arg(format!("--master=http://{address}")).spawn()?;
    agent.wait_for_log(&["refuses to list or watch", ESCAPED])?;
    assert_escaped(&agent.log());
    let told = run_shunt(node, &["status"])?;
    assert_escaped(&printed(&told));
    Ok(())
}
