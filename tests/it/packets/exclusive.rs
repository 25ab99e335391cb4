//! One agent at a time works in a network namespace, and only root decides which.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use shunt::serve::presence::{FIRST_PORT, PORTS};
use shunt_testbed::{Netns, eventually, patience};

use crate::world::{CLUSTER_CIDR, World, status_json};

/// A port number of netlink, taken as any process can take it: in no multicast group.
fn occupy(ns: &Netns, port: u32) -> Result<OwnedFd> {
    ns.run(|| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkNetFilter;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(port, 0))?;
        Ok(socket)
    })
}

/// Names of abstract sockets, taken as any process can take them.
fn names(ns: &Netns) -> Result<Vec<UnixListener>> {
    ns.run(|| {
        let listen = |name| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
        Ok(["shunt/dataplane", "shunt/status"].map(listen).into_iter().collect::<Result<_, _>>()?)
    })
}

/// With all names and some or all numbers taken by processes that may be no agents.
#[test]
fn processes_without_rights_delay_nothing_and_two_agents_still_exclude_each_other() -> Result<()> {
    for occupied in [1, PORTS] {
        let world = World::with_web()?;
        let node = &world.lab.node;
        let _names = names(node)?;
        let mut ports = Vec::new();
        for port in FIRST_PORT..FIRST_PORT + occupied {
            ports.push(occupy(node, port)?);
        }
        let start = Instant::now();
        let first = world.start()?;
        ensure!(start.elapsed() < patience(Duration::from_secs(5)), "{}", first.log());
        assert_eq!(status_json(node)?["process"], first.pid());
        let second = world.agent(CLUSTER_CIDR)?.spawn()?;
        let held = format!("another shunt (process {})", first.pid());
        second.wait_for_log(&[&held, "waiting until it ends"])?;
        if occupied < PORTS {
            // What becomes free is not enough for another one.
            drop(ports);
        }
        let third = world.agent(CLUSTER_CIDR)?.spawn()?;
        third.wait_for_log(&[&held, "waiting until it ends"])?;
        assert!(!second.log().contains("serving") && !third.log().contains("serving"));
        world.assert_web_works();

        first.kill()?;
        let start = Instant::now();
        let acts = eventually("the next agent", || {
            let [second_acts, third_acts] =
                [&second, &third].map(|agent| agent.log().contains("serving metrics"));
            ensure!(!(second_acts && third_acts), "both act");
            let acts = if second_acts { &second } else { &third };
            Ok((second_acts || third_acts).then_some(acts))
        })?;
        let took = start.elapsed();
        ensure!(took < patience(Duration::from_secs(2)), "it took {took:?}");
        acts.wait_ready()?;
        assert_eq!(status_json(node)?["process"], acts.pid());
        world.assert_web_works();
    }
    Ok(())
}
