//! Endpoints that do not answer, whether or not the API lists them as ready. An attempt to connect that
//! is not answered within a second is forgotten, so that the client's next SYN is balanced anew.
//! Connections that were answered stay where they are.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{Flow, Host, Outcome, Protocol};

use crate::world::{CLUSTER_CIDR, TARGET, World, manifest, web};

/// The frontends of [`web`].
const CLUSTER_IPS: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];
const OTHERS: [&str; 6] = [
    "198.51.100.10:80",
    "[2001:db8:51::10]:80",
    "203.0.113.10:80",
    "[2001:db8:113::10]:80",
    "192.0.2.10:30080",
    "[2001:db8:2::10]:30080",
];
/// A socket of a client that sends its SYN twice: after a second, Linux sends it again.
const TWO_SYNS: Duration = Duration::from_millis(2_500);
/// In this time, a client sends 24 SYNs. With two endpoints, fewer than one client in ten million meets
/// the dead one each time.
const PATIENT: Duration = Duration::from_secs(30);
/// The number of clients of a kind. One of them meets the dead endpoint first, but for one time in
/// 65 000.
const CLIENTS: usize = 16;
/// Makes a pod drop all packets to its server.
fn mute(pod: &Host) -> Result<()> {
    pod.nft(&format!(
        "table inet mute {{
             chain input {{
                 type filter hook input priority 0
                 tcp dport {TARGET} drop
             }}
         }}"
    ))
}

fn unmute(pod: &Host) -> Result<()> {
    pod.nft("delete table inet mute")
}

/// What becomes of a client that connects from the same port again and again, with two SYNs each time:
/// the server that takes the connection, or the error if it was refused or reset, or ran out of time.
fn insist(host: &Host, to: SocketAddr, patience: Duration) -> Result<String> {
    let began = Instant::now();
    let unbound: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse()?;
    let mut from = unbound;
    loop {
        // Another socket may have the port meanwhile.
        let open = |from| Flow::open(Protocol::Tcp, from, to);
        let mut attempt = host.run(|| open(from).or_else(|_| open(unbound)))?;
        from.set_port(attempt.source.port());
        let last = match attempt.server(TWO_SYNS) {
            Ok(server) => return Ok(server),
            Err(error) => error,
        };
        if attempt.reply.as_ref().is_some_and(Outcome::is_refused) {
            return Err(last);
        }
        ensure!(began.elapsed() < patience, "no server in {patience:?}: {last}");
    }
}

/// Lets clients connect at the same time from outside, from a pod and from the node.
fn insist_all(world: &World, to: &[&str], each: usize, patience: Duration) -> Vec<Result<String>> {
    let lab = &world.lab;
    let hosts = [&lab.client, &lab.pod2, &lab.node];
    let calls = to.iter().flat_map(|to| hosts.map(|host| (host, to)));
    let calls: Vec<_> = calls.flat_map(|call| vec![call; each]).collect();
    thread::scope(|scope| {
        let call = |(host, to): (_, &&str)| {
            let to = to.parse();
            scope.spawn(move || insist(host, to?, patience))
        };
        let clients: Vec<_> = calls.into_iter().map(call).collect();
        let join = |client: thread::ScopedJoinHandle<'_, Result<String>>| {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        clients.into_iter().map(join).collect()
    })
}

#[track_caller]
fn assert_all_reach(outcomes: Vec<Result<String>>, server: &str, step: &str) {
    let wrong: Vec<_> =
        outcomes.iter().filter(|it| !matches!(it, Ok(name) if name == server)).collect();
    assert!(wrong.is_empty(), "{step}: {} of {}: {wrong:?}", wrong.len(), outcomes.len());
}

/// A node with web on the first and the third pod.
fn on_two_pods() -> Result<World> {
    let world = World::new()?;
    let pods = [&world.lab.pod1, &world.lab.pod3];
    world.manifests.write("web.yaml", manifest(&web(), "web", &pods))?;
    Ok(world)
}

/// Programs the rules without an agent that stays, so that a test can change them.
fn program(world: &World) -> Result<()> {
    let output = world.agent(CLUSTER_CIDR)?.once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Empties a chain of both tables.
fn flush(world: &World, chain: &str) -> Result<()> {
    world.lab.node.nft(&format!("flush chain ip shunt {chain}; flush chain ip6 shunt {chain}"))
}

#[test]
fn each_frontend_reaches_the_other_endpoint_when_one_is_dead() -> Result<()> {
    let world = on_two_pods()?;
    let _agent = world.start()?;
    mute(&world.lab.pod3)?;
    let outcomes = insist_all(&world, &OTHERS, CLIENTS / 4, PATIENT);
    assert_all_reach(outcomes, "pod-1", "the port is silent");
    Ok(())
}

/// The ways in which an endpoint stops to answer.
#[test]
fn every_death_of_an_endpoint_is_survived() -> Result<()> {
    let deaths = [
        ("it drops all packets", ""),
        ("a policy blocks the clients", "meta l4proto tcp"),
        // As Linux does it: the handshakes of others may go on.
        ("its queue of connections is full", "tcp flags & (syn|ack) == syn"),
    ];
    let world = on_two_pods()?;
    let _agent = world.start()?;
    let pod = &world.lab.pod3;
    for (death, dropped) in deaths {
        pod.nft(&format!(
            "table inet dead {{
                 chain input {{ type filter hook input priority 0; {dropped} drop; }}
             }}"
        ))?;
        let outcomes = insist_all(&world, &CLUSTER_IPS, CLIENTS, PATIENT);
        assert_all_reach(outcomes, "pod-1", death);
        pod.nft("delete table inet dead")?;
    }
    world.lab.node2.ip("link set eth0 down")?;
    assert_all_reach(
        insist_all(&world, &CLUSTER_IPS, CLIENTS, PATIENT),
        "pod-1",
        "its link is dead",
    );
    Ok(())
}

#[test]
fn endpoints_that_are_all_dead_serve_again_when_one_recovers() -> Result<()> {
    let world = on_two_pods()?;
    let _agent = world.start()?;
    let (pod1, pod3) = (&world.lab.pod1, &world.lab.pod3);
    mute(pod1)?;
    mute(pod3)?;
    for alive in [pod1, pod3, pod1] {
        let outcomes = insist_all(&world, &CLUSTER_IPS, 1, Duration::ZERO);
        assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        unmute(alive)?;
        assert_all_reach(insist_all(&world, &CLUSTER_IPS, 2, PATIENT), &alive.name, "one recovers");
        mute(alive)?;
    }
    Ok(())
}

/// A pod repeats its SYN-ACK when nothing came back, at the moment at which the kernel forgets the
/// attempt. It must not reach the client untranslated, whose reset would end the next attempt.
#[test]
fn lost_answers_reset_no_connection() -> Result<()> {
    let world = on_two_pods()?;
    program(&world)?;
    for pod in [&world.lab.pod1, &world.lab.pod3] {
        pod.nft(
            "table inet loss {
                 chain output {
                     type filter hook output priority 0
                     tcp flags & (syn|ack) == (syn|ack) numgen random mod 2 == 0 drop
                 }
             }",
        )?;
    }
    let resets = |outcomes: Vec<Result<String>>| {
        let errors = outcomes.into_iter().filter_map(Result::err);
        errors.filter(|error| error.to_string().contains("Reset")).count()
    };
    let connect = || insist_all(&world, &CLUSTER_IPS, 4 * CLIENTS, PATIENT);
    flush(&world, "forward")?;
    // Six of 384 on average, and none once in a while.
    let rounds =
        (1..=10).find(|_| resets(connect()) > 0).context("none is reset without the rule")?;
    program(&world)?;
    (0..rounds).for_each(|_| assert_eq!(resets(connect()), 0));
    Ok(())
}
