//! The stand-in and the gate do wrong what they are told to do wrong, and nothing else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};
use shunt_fake_apiserver::{Answer, Client, Fault, Gate, Kind, Standin, TOKEN, Verb, Watching};
use shunt_testbed::Netns;

const NODES: &str = "/api/v1/nodes";

fn client(api: &Standin) -> Result<Client> {
    let address = api.address();
    Client::new(move || TcpStream::connect(address), api.authority().as_deref(), TOKEN)
}

fn put(api: &Standin, name: &str) -> Result<()> {
    api.put(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}"))
}

fn watch<'a>(api: &Standin, client: &'a Client) -> Result<Watching<'a>> {
    client.watch(&format!("{NODES}?watch=true&resourceVersion={}", api.revision()))
}

fn named(watch: &mut Watching<'_>) -> Result<String> {
    let event = watch.next_event()?.context("no event")?;
    Ok(format!("{} {}", event["type"], event["object"]["metadata"]["name"]))
}

#[test]
fn faults_befall_what_they_are_meant_for_and_end() -> Result<()> {
    let api = Standin::start()?;
    let client = client(&api)?;
    api.misbehave(Fault::new(Answer::RetryAfter(429, 1)).on(Verb::List).of(Kind::Node).times(2));
    assert_eq!(client.get("/api/v1/services")?.status, 200);
    for status in [429, 429, 200] {
        assert_eq!(client.get(NODES)?.status, status);
    }
    api.misbehave(Fault::new(Answer::Status(500)));
    assert_eq!(client.get(NODES)?.status, 500);
    api.behave();
    assert_eq!(client.get(NODES)?.status, 200);
    api.misbehave(Fault::new(Answer::Body(b"{\"kind\":".to_vec())).times(1));
    assert_eq!(client.get(NODES)?.body, "{\"kind\":");
    api.misbehave(Fault::new(Answer::Late(Duration::from_millis(1))).times(1));
    assert_eq!(client.get(NODES)?.status, 200);
    api.configure(|settings| settings.service_cidrs = false);
    assert_eq!(client.get("/apis/networking.k8s.io/v1/servicecidrs")?.status, 404);
    let lists = |request: &shunt_fake_apiserver::Request| {
        request.kind == Some(Kind::Node) && request.starts_list()
    };
    api.wait_for_requests(7, lists)?;
    Ok(())
}

#[test]
fn answers_are_cut_off() -> Result<()> {
    let api = Standin::start()?;
    let client = client(&api)?;
    put(&api, "a")?;
    for bytes in [0, 1, 50] {
        api.misbehave(Fault::new(Answer::CutAfter(bytes)).times(1));
        client.get(NODES).expect_err("half an answer");
    }
    api.misbehave(Fault::new(Answer::CutAfter(1000)).on(Verb::Watch).times(1));
    let mut watch = watch(&api, &client)?;
    put(&api, "b")?;
    assert_eq!(named(&mut watch)?, "\"ADDED\" \"b\"");
    (0..10).try_for_each(|_| put(&api, "b"))?;
    let mut rest = std::iter::from_fn(|| named(&mut watch).ok());
    assert!(rest.by_ref().count() < 10);
    Ok(())
}

#[test]
fn watches_say_what_they_are_told_to() -> Result<()> {
    let api = Standin::start()?;
    let client = client(&api)?;
    let mut first = watch(&api, &client)?;
    put(&api, "a")?;
    let old = api.all(Kind::Node).remove(0);
    api.say_event(Kind::Node, "DELETED", &old)?;
    put(&api, "b")?;
    api.bookmark(Kind::Node)?;
    api.say(Kind::Node, "garbage\n")?;
    api.end_watches(Kind::Node)?;
    assert_eq!(named(&mut first)?, "\"ADDED\" \"a\"");
    assert_eq!(named(&mut first)?, "\"DELETED\" \"a\"");
    assert_eq!(named(&mut first)?, "\"ADDED\" \"b\"");
    assert_eq!(named(&mut first)?, "\"BOOKMARK\" null");
    named(&mut first).expect_err("garbage is no event");
    assert_eq!(first.next_event()?, None);
    drop(first);

    api.configure(|settings| settings.twice = true);
    let mut second = watch(&api, &client)?;
    put(&api, "c")?;
    assert_eq!(named(&mut second)?, named(&mut second)?);
    api.say(Kind::Node, "{\"type\":\"ADD")?;
    api.break_watches(Kind::Node)?;
    second.next_event().expect_err("broken off in a line");
    Ok(())
}

#[test]
fn a_new_authority_is_one_that_clients_must_get_to_know() -> Result<()> {
    let api = Standin::start()?;
    let old = client(&api)?;
    assert_eq!(old.get(NODES)?.status, 200);
    api.rotate_authority()?;
    old.get(NODES).expect_err("an authority that the client does not know");
    assert_eq!(client(&api)?.get(NODES)?.status, 200);
    let plain = Standin::start_plain()?;
    assert_eq!(client(&plain)?.get(NODES)?.status, 200);
    Ok(())
}

/// A gate before a server that sends back what it gets.
fn echo_behind_a_gate() -> Result<(Gate, Netns)> {
    let netns = Netns::new()?;
    netns.ip("link set lo up")?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(|connection| connection.ok()) {
            std::thread::spawn(move || {
                let (mut from, mut to) = (connection.try_clone()?, connection);
                std::io::copy(&mut from, &mut to)
            });
        }
    });
    Ok((Gate::open(&netns, move || TcpStream::connect(address))?, netns))
}

fn echo(connection: &mut TcpStream, text: &[u8]) -> std::io::Result<()> {
    connection.write_all(text)?;
    let mut back = vec![0; text.len()];
    connection.read_exact(&mut back)
}

#[test]
fn a_gate_lets_through_what_it_is_told_to() -> Result<()> {
    let (gate, netns) = echo_behind_a_gate()?;
    let connect = || netns.run(|| Ok(TcpStream::connect(gate.address())));
    let mut first = connect()??;
    echo(&mut first, b"open")?;

    gate.cut()?;
    let error = echo(&mut first, b"cut").expect_err("the connection is cut");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let mut second = connect()??;
    echo(&mut second, b"open")?;

    gate.block()?;
    second.set_read_timeout(Some(Duration::from_millis(100)))?;
    let error = echo(&mut second, b"blocked").expect_err("nothing goes through");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let accepted = gate.accepted();
    let mut third = connect()??;
    gate.wait_for_accepted(accepted + 1)?;
    third.write_all(b"late")?;

    gate.reopen()?;
    let mut late = [0; 4];
    third.read_exact(&mut late)?;
    assert_eq!(&late, b"late");

    gate.abandon()?;
    third.set_read_timeout(Some(Duration::from_millis(100)))?;
    let error = echo(&mut third, b"abandoned").expect_err("nothing goes through");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    echo(&mut connect()??, b"open")?;

    gate.refuse()?;
    let error = connect()?.expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    echo(&mut third, b"cut").expect_err("the connection is cut");

    gate.reopen()?;
    gate.cut_after(6)?;
    let mut fourth = connect()??;
    echo(&mut fourth, b"4321")?;
    let mut rest = Vec::new();
    fourth.write_all(b"abcd")?;
    let error = fourth.read_to_end(&mut rest).expect_err("the connection is cut");
    assert_eq!((rest.as_slice(), error.kind()), (&b"ab"[..], std::io::ErrorKind::ConnectionReset));
    Ok(())
}
