//! Traces of packets through the rules.

use std::net::UdpSocket;

use anyhow::Result;
use nfnetlink::Family;
use nfnetlink::nft::{
    BaseChain, Batch, ChainKind, Expr, Hook, Kernel as _, Register, SetType, Socket, TABLE_OWNER,
    TraceListener, TraceStep, Verdict, Wanted,
};
use shunt_testbed::{Netns, eventually};

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
        let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Output, priority: -301 };
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
        for _ in 0..2 {
            UdpSocket::bind("127.0.0.1:0")?.send_to(b"3", "127.0.0.1:9")?;
        }
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
