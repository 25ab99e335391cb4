//! Ports that are taken.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::AsRawFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt,
};
use shunt_testbed::{HEALTH_PORT, METRICS_PORT};

use crate::world::{World, status_text};

/// Takes a port on the node.
fn take(world: &World, port: u16) -> Result<TcpListener> {
    world.lab.node.run(|| Ok(TcpListener::bind(("0.0.0.0", port))?))
}

#[test]
fn a_taken_port_is_said_and_tried_again() -> Result<()> {
    let world = World::empty()?;
    let taken = take(&world, METRICS_PORT)?;
    let agent = world.plain_agent().start()?;
    agent.wait_for_log(&["metricsBindAddress", "127.0.0.1:10249", "retrying"])?;
    drop(taken);
    agent
        .wait_for_answer(METRICS_PORT, "/healthz", |answer| (answer.body == "ok").then_some(()))?;
    agent.stop()
}

/// Another process answers the probes then, at one address or at all.
#[test]
fn a_port_that_another_process_has_is_a_problem_until_it_is_free() -> Result<()> {
    for address in ["127.0.0.1", "0.0.0.0"] {
        let world = World::empty()?;
        let taken = world.lab.node.run(|| Ok(TcpListener::bind((address, HEALTH_PORT))?))?;
        let agent = world.plain_agent().spawn()?;
        agent.wait_for_log(&["ERROR", "healthzBindAddress", "0.0.0.0:10256"])?;
        let unbound = |count: f64| {
            let labels = [("server", "health")];
            agent.wait_for_sample("shunt_unbound_ports", &labels, |it| it == count)
        };
        unbound(1.0)?;
        agent.wait_for_sample("shunt_services", &[], |it| it == 0.0)?;
        let told = status_text(&world.lab.node)?;
        let problem = "PROBLEM  cannot listen on 0.0.0.0:10256 for /healthz and /livez";
        assert!(told.contains(problem), "{told}");

        drop(taken);
        agent.wait_ready()?;
        unbound(0.0)?;
        let told = status_text(&world.lab.node)?;
        assert!(!told.contains("PROBLEM"), "{told}");
        agent.stop()?;
    }
    Ok(())
}

/// Options that let sockets share a port take the consent of both.
#[test]
fn another_process_cannot_listen_beside_the_agent() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().start()?;
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 10)] {
        for (reuse_address, reuse_port) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let listened = world.lab.node.run(|| {
                let flags = SockFlag::SOCK_CLOEXEC;
                let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
                setsockopt(&socket, sockopt::ReuseAddr, &reuse_address)?;
                setsockopt(&socket, sockopt::ReusePort, &reuse_port)?;
                let address = SockaddrIn::from(SocketAddrV4::new(ip, HEALTH_PORT));
                Ok(bind(socket.as_raw_fd(), &address)
                    .and_then(|()| listen(&socket, Backlog::new(1)?)))
            })?;
            assert_eq!(listened, Err(Errno::EADDRINUSE), "{ip} {reuse_address} {reuse_port}");
        }
    }
    agent.stop()
}

#[test]
fn taken_port_ends_the_agent_with_bind_address_hard_fail() -> Result<()> {
    for (port, field) in [(METRICS_PORT, "metricsBindAddress"), (HEALTH_PORT, "healthzBindAddress")]
    {
        let world = World::empty()?;
        let _taken = take(&world, port)?;
        let agent = world.plain_agent().config("bindAddressHardFail: true\n")?.spawn()?;
        assert_eq!(agent.wait_for_end()?.code(), Some(1), "{}", agent.log());
        let line = agent.wait_for_log(&["ERROR", field, &port.to_string()])?;
        assert_eq!(line.matches("(os error ").count(), 1, "{line}");
    }
    Ok(())
}
