//! Traces of packets through the rules.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use nfnetlink::Family;
use nfnetlink::nft::{
    BaseChain, Batch, ChainType, Expr, Hook, Kernel as _, NfProto, Register, SetType, Socket,
    TABLE_OWNER, TraceEvent, TraceListener, TraceStep, Verdict, Wanted,
};
use nix::poll::{PollFd, PollFlags, poll};
use shunt_testbed::{Netns, eventually, patience};

use crate::wait_until_local;

/// Waits until the listener has an event for which `is_last` is true, and returns all until then.
fn events(
    listener: &mut TraceListener,
    is_last: impl Fn(&TraceEvent) -> bool,
) -> Result<Vec<TraceEvent>> {
    let mut events = Vec::new();
    while !events.iter().any(&is_last) {
        let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let timeout = patience(Duration::from_secs(10));
        ensure!(poll(&mut fds, u16::try_from(timeout.as_millis())?)? > 0, "only {events:#?}");
        ensure!(!listener.drain(|event| events.push(event))?, "events were lost");
    }
    Ok(events)
}

fn send(from: &str, to: &str) -> Result<()> {
    UdpSocket::bind(from)?.send_to(b"question", to)?;
    Ok(())
}

#[test]
fn packet_is_followed_through_chains_and_nat() -> Result<()> {
    let netns = Netns::new()?;
    netns.ip("link set lo up")?;
    wait_until_local(&netns, &["::1"])?;
    netns.nft(
        "table inet t {
            chain marks { type filter hook output priority -300; udp dport 53 mark set 7 meta nftrace set 1; }
            chain translates {
                type nat hook output priority -100;
                udp dport 53 goto balancer
            }
            chain balancer {
                meta nfproto ipv4 udp dport 53 dnat ip to 127.0.0.1:5353
                meta nfproto ipv6 udp dport 53 dnat ip6 to [::1]:5353
            }
            chain drops {
                type filter hook input priority 0;
                udp dport 5353 counter reject comment \"no entry\"
            }
        }",
    )?;
    for (from, to, backend) in
        [("127.0.0.1:0", "127.0.0.2:53", "127.0.0.1:5353"), ("[::1]:0", "[::1]:53", "[::1]:5353")]
    {
        netns.run(|| {
            let mut listener = TraceListener::open()?;
            send(from, to)?;
            let events = events(&mut listener, |event| event.chain == "drops")?;
            let steps: Vec<String> =
                events.iter().map(|event| format!("{} {}", event.chain, event.verdict)).collect();
            let rules = ["marks continue", "marks accept", "translates goto balancer"];
            assert_eq!(steps[..3], rules);
            assert_eq!(steps[3..], ["balancer accept", "drops drop"]);
            assert!(events.iter().all(|it| it.family == NfProto::Inet && it.table == "t"));
            let first = events[0].header.expect("headers");
            assert_eq!((first.destination.to_string(), first.protocol), (to.to_owned(), 17));
            let last = &events[4];
            assert_eq!(last.mark, 7);
            assert_eq!(last.header.expect("headers").destination.to_string(), backend);
            assert_eq!((events[0].output.is_some(), last.input), (true, Some(1)));
            let TraceStep::Rule(handle) = last.step else { panic!("{last:?}") };
            let rule = Socket::open()?.rule(NfProto::Inet, "t", "drops", handle)?;
            let rule = rule.expect("a rule");
            assert_eq!((rule.comment.as_deref(), rule.rejects()), (Some("no entry"), true));
            let none = Socket::open()?.rule(NfProto::Inet, "t", "drops", 999)?;
            assert_eq!(none, None);
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn full_set_limits_the_traced_packets() -> Result<()> {
    let netns = Netns::new()?;
    netns.ip("link set lo up")?;
    netns.run(|| {
        let mut socket = Socket::open()?;
        let (family, table) = (Family::Ip, "traces");
        let mut batch = Batch::new(None);
        batch.add_table(family, table, TABLE_OWNER, "a test");
        let sources = SetType { learned: true, size: Some(2), ..SetType::of(13, 2) };
        batch.add_set(family, table, "ports", &sources);
        let base = BaseChain { kind: ChainType::Filter, hook: Hook::Out, priority: -301 };
        batch.add_chain(family, table, "start", Some(base));
        let first = Register(0);
        let load = Expr::transport(0, 2, first);
        let set = || "ports".to_owned();
        let rule = [
            load,
            Expr::Lookup { set: set(), key: first, wanted: Wanted::NoMember },
            Expr::Update { set: set(), key: first, data: None, timeout: 60_000, renew: false },
            Expr::Value { bytes: vec![1], to: first },
            Expr::SetMeta { key: libc::NFT_META_NFTRACE, from: first },
        ];
        batch.add_rule(family, table, "start", &rule, None);
        socket.commit(&batch.finish())?;

        let mut listener = TraceListener::open()?;
        let sender = UdpSocket::bind("127.0.0.1:0")?;
        // Of one source only the first packet is traced, and of three sources only two.
        sender.send_to(b"1", "127.0.0.1:9")?;
        sender.send_to(b"2", "127.0.0.1:9")?;
        send("127.0.0.1:0", "127.0.0.1:9")?;
        send("127.0.0.1:0", "127.0.0.1:9")?;
        let mut events = Vec::new();
        listener.drain(|event| events.push(event))?;
        let policies = events.iter().filter(|event| event.step == TraceStep::Policy);
        assert_eq!(policies.count(), 2, "{events:#?}");
        assert!(events.iter().all(|it| it.verdict != Verdict::Drop));

        // The table belongs to the socket. A process that another test starts has a copy of the socket
        // until it executes its program.
        drop(socket);
        eventually("the end of the table", || {
            Ok(Socket::open()?.table(family, table)?.is_none().then_some(()))
        })
    })
}
