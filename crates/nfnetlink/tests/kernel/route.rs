//! Routes, interfaces and neighbours.

use anyhow::{Context as _, Result, bail};
use nfnetlink::Error;
use nfnetlink::route::{
    Link, NeighbourState, Route, RouteAnswer, RouteKind, RouteQuery, addresses, links, neighbour,
    route_to,
};
use nix::errno::Errno;
use shunt_testbed::Netns;

use crate::wait_until_local;

/// Makes a node that is 192.0.2.1 on `east` and 198.51.100.1 on `west`, and forwards packets.
fn node() -> Result<Netns> {
    let netns = Netns::new()?;
    netns.ip("link set lo up
        link add east type veth peer name east-peer
        link add west type veth peer name west-peer
        link set east up
        link set east-peer up
        link set west up
        link set west-peer up
        addr add 192.0.2.1/24 dev east
        addr add 198.51.100.1/24 dev west
        addr add 2001:db8:1::1/64 dev east nodad
        addr add 2001:db8:2::1/64 dev west nodad
        route add 10.1.0.0/16 via 192.0.2.254
        route add 10.2.0.0/16 via inet6 fe80::9 dev west
        route add 2001:db8:9::/48 via 2001:db8:1::254
        route add blackhole 10.3.0.0/16
        route add unreachable 10.4.0.0/16
        route add prohibit 10.5.0.0/16
        route add unreachable 2001:db8:4::/48
        route add 10.6.0.0/16 via 192.0.2.254 table 1000
        rule add fwmark 0x10 table 1000")?;
    netns.sysctl(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/east/rp_filter", "0"),
        ("net/ipv4/conf/west/rp_filter", "0"),
    ])?;
    wait_until_local(&netns, &["2001:db8:1::1", "2001:db8:2::1"])?;
    Ok(netns)
}

fn index_of(name: &str) -> Result<u32> {
    Ok(link(name)?.index)
}

fn link(name: &str) -> Result<Link> {
    links()?.into_iter().find(|link| link.name == name).context("no such interface")
}

fn sent_to(destination: &str) -> Result<RouteAnswer> {
    Ok(route_to(RouteQuery::to(destination.parse()?))?)
}

fn route(answer: RouteAnswer) -> Result<Route> {
    match answer {
        RouteAnswer::Route(route) => Ok(route),
        RouteAnswer::Refused(errno) => bail!("refused: {errno}"),
    }
}

#[test]
fn route_of_a_sent_packet_has_gateway_interface_and_source() -> Result<()> {
    node()?.run(|| {
        let (east, west) = (Some(index_of("east")?), Some(index_of("west")?));
        let unicast = |gateway: Option<&str>, output, source: &str| -> Result<Route> {
            Ok(Route {
                kind: RouteKind::Unicast,
                gateway: gateway.map(str::parse).transpose()?,
                output,
                source: Some(source.parse()?),
            })
        };
        let cases = [
            ("192.0.2.77", unicast(None, east, "192.0.2.1")?),
            ("10.1.2.3", unicast(Some("192.0.2.254"), east, "192.0.2.1")?),
            ("10.2.2.3", unicast(Some("fe80::9"), west, "198.51.100.1")?),
            ("2001:db8:9::1", unicast(Some("2001:db8:1::254"), east, "2001:db8:1::1")?),
        ];
        for (destination, expected) in cases {
            assert_eq!(route(sent_to(destination)?)?, expected, "{destination}");
        }
        for (destination, kind) in [
            ("192.0.2.1", RouteKind::Local),
            ("2001:db8:2::1", RouteKind::Local),
            ("192.0.2.255", RouteKind::Other),
        ] {
            assert_eq!(route(sent_to(destination)?)?.kind, kind, "{destination}");
        }
        Ok(())
    })
}

#[test]
fn addresses_are_those_of_the_node_and_not_of_its_peers() -> Result<()> {
    let netns = Netns::new()?;
    netns.ip("link add east type veth peer name west
        addr add 192.0.2.1 peer 192.0.2.9 dev east
        addr add 2001:db8::1/64 dev east nodad
        link set east up")?;
    let found: Vec<String> =
        netns.run(|| Ok(addresses()?.iter().map(ToString::to_string).collect()))?;
    assert_eq!(found, ["192.0.2.1", "2001:db8::1"]);
    Ok(())
}

#[test]
fn refusals_of_routing_are_answers() -> Result<()> {
    node()?.run(|| {
        for (destination, errno) in [
            ("10.3.0.1", Errno::EINVAL),
            ("10.4.0.1", Errno::EHOSTUNREACH),
            ("10.5.0.1", Errno::EACCES),
            ("10.9.0.1", Errno::ENETUNREACH),
            ("2001:db8:4::1", Errno::EHOSTUNREACH),
            ("2001:db8:5::1", Errno::ENETUNREACH),
        ] {
            assert_eq!(sent_to(destination)?, RouteAnswer::Refused(errno), "{destination}");
        }
        Ok(())
    })
}

#[test]
fn mark_selects_a_routing_table() -> Result<()> {
    node()?.run(|| {
        let query = RouteQuery::to("10.6.0.1".parse()?);
        assert_eq!(route_to(query)?, RouteAnswer::Refused(Errno::ENETUNREACH));
        let marked = route(route_to(RouteQuery { mark: 0x10, ..query })?)?;
        assert_eq!(marked.gateway, Some([192, 0, 2, 254].into()));
        Ok(())
    })
}

#[test]
fn packet_that_arrives_is_forwarded_or_refused() -> Result<()> {
    let node = node()?;
    let ask = |source: &str, destination: &str| {
        node.run(|| {
            let query = RouteQuery {
                destination: destination.parse()?,
                source: Some(source.parse()?),
                input: Some(index_of("west")?),
                mark: 0,
            };
            Ok((route_to(query)?, index_of("east")?))
        })
    };
    for (source, destination) in [("198.51.100.7", "10.1.0.1"), ("2001:db8:2::7", "2001:db8:9::1")]
    {
        let (answer, east) = ask(source, destination)?;
        assert_eq!(route(answer)?.output, Some(east), "{destination}");
    }
    let (answer, _) = ask("198.51.100.7", "192.0.2.1")?;
    assert_eq!(route(answer)?.kind, RouteKind::Local);
    let (answer, _) = ask("198.51.100.7", "10.4.0.1")?;
    assert!(matches!(answer, RouteAnswer::Refused(_)), "{answer:?}");

    // A source behind another interface, with a strict reverse path filter.
    assert!(matches!(ask("192.0.2.9", "10.1.0.1")?.0, RouteAnswer::Route(_)));
    node.sysctl(&[("net/ipv4/conf/west/rp_filter", "1")])?;
    let (answer, _) = ask("192.0.2.9", "10.1.0.1")?;
    assert!(matches!(answer, RouteAnswer::Refused(Errno::EXDEV | Errno::EINVAL)), "{answer:?}");

    node.sysctl(&[("net/ipv4/ip_forward", "0")])?;
    let (answer, _) = ask("198.51.100.7", "10.1.0.1")?;
    assert!(matches!(answer, RouteAnswer::Refused(_)), "{answer:?}");
    Ok(())
}

#[test]
fn missing_interfaces_are_errors() -> Result<()> {
    node()?.run(|| {
        let query = RouteQuery {
            source: Some("198.51.100.7".parse()?),
            input: Some(99_999),
            ..RouteQuery::to("10.1.0.1".parse()?)
        };
        assert!(matches!(route_to(query), Err(Error::Request { errno: Errno::ENODEV, .. })));
        let error = neighbour("192.0.2.9".parse()?, 99_999);
        assert!(matches!(error, Err(Error::Request { errno: Errno::ENODEV, .. })), "{error:?}");
        Ok(())
    })
}

#[test]
fn interfaces_have_kind_peer_and_master() -> Result<()> {
    let (node, other) = (node()?, Netns::new()?);
    node.ip("link add bridge type bridge
        link set west master bridge")?;
    let target = other.path();
    node.output("ip", &["link", "set", "east-peer", "netns", &target.display().to_string()])?;
    node.run(|| {
        let (east, west) = (link("east")?, link("west")?);
        assert_eq!((east.kind.as_deref(), east.up), (Some("veth"), true));
        assert!(east.peer.is_some() && east.peer_namespace.is_some(), "{east:?}");
        assert!(!east.carrier, "a new namespace switches its end off");
        assert_eq!((west.peer, west.peer_namespace), (Some(index_of("west-peer")?), None));
        assert_eq!(west.master, Some(index_of("bridge")?));
        assert!(west.carrier && link("lo")?.loopback);
        Ok(())
    })
}

#[test]
fn neighbours_have_the_state_that_the_kernel_gives_them() -> Result<()> {
    let node = node()?;
    node.ip("neigh add 192.0.2.16 dev east nud failed
        neigh add 192.0.2.17 dev east lladdr 02:00:00:00:00:17 nud permanent
        neigh add 2001:db8:1::17 dev east lladdr 02:00:00:00:00:17 nud stale")?;
    node.run(|| {
        let (east, west) = (index_of("east")?, index_of("west")?);
        for (address, interface, state) in [
            ("192.0.2.16", east, Some(NeighbourState::Failed)),
            ("192.0.2.17", east, Some(NeighbourState::Permanent)),
            ("192.0.2.17", west, None),
            ("192.0.2.18", east, None),
            ("2001:db8:1::17", east, Some(NeighbourState::Stale)),
        ] {
            assert_eq!(neighbour(address.parse()?, interface)?, state, "{address}");
        }
        Ok(())
    })
}
