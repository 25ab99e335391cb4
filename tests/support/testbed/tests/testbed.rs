//! The testbed without the agent: what it expects fails where it should, and nothing gets lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anyhow::{Context, Result};
use shunt_testbed::{Echo, Protocol, Topology, Traffic};

/// What the agent would do for a Service: port 80 goes to one pod of the node or the other, 81 to
/// the pod on the other node; 83 is rejected, 84 is dropped.
const RULES: &str = "table ip by-hand {
    chain arriving {
        type nat hook prerouting priority -100
        ip daddr 10.96.0.10 tcp dport 80 numgen random mod 2 0 dnat to 10.244.0.11:8080
        ip daddr 10.96.0.10 tcp dport 80 dnat to 10.244.0.12:8080
        ip daddr 10.96.0.10 tcp dport 81 dnat to 10.244.1.21:8080
    }
    chain leaving { type nat hook postrouting priority 100; ct status dnat ip daddr 10.244.1.21 masquerade; }
    chain forwarded {
        type filter hook forward priority 0
        ip daddr 10.96.0.10 th dport 83 reject
        ip daddr 10.96.0.10 th dport 84 drop
    }
}";

/// The message of an expectation that must fail.
fn failure(check: impl Fn()) -> Result<String> {
    let panic = catch_unwind(AssertUnwindSafe(check)).err().context("it did not fail")?;
    panic.downcast::<String>().map(|text| *text).ok().context("a strange panic")
}

#[test]
fn a_failed_expectation_explains_itself() -> Result<()> {
    let lab = Topology::new()?;
    lab.node.nft(RULES)?;
    let _servers = lab.serve(8080)?;
    let to = |port: u16| lab.from(&lab.client).tcp(format!("10.96.0.10:{port}"));

    let missing = failure(|| drop(to(80).reaches(&["pod-1", "pod-3"])))?;
    for part in [
        "from client to 10.96.0.10:80/TCP",
        "expected: exactly these reached: pod-1, pod-3",
        "× reached pod-2, which saw 192.0.2.100",
        "ip daddr 10.96.0.10 tcp dport 81 dnat to 10.244.1.21:8080",
    ] {
        assert!(missing.contains(part), "no {part:?} in {missing}");
    }
    failure(|| drop(to(80).times(50).reaches(&["pod-1"])))?;
    failure(|| drop(to(80).reaches(&["pod-1", "pod-2"]).source_masqueraded()))?;
    failure(|| drop(to(81).reaches(&["pod-3"]).source_preserved()))?;
    failure(|| drop(to(83).reaches(&["pod-1"])))?;
    failure(|| to(83).dropped())?;
    let moment = Duration::from_millis(50);
    let silent = || lab.from(&lab.client).udp("10.96.0.10:84").within(moment);
    failure(|| silent().refused())?;
    failure(|| silent().unhandled())?;
    let late = failure(|| to(80).within(moment).refused())?;
    assert!(late.contains("of trying"), "{late}");

    // Of no packet at all, anything would be true.
    assert!(failure(|| drop(to(80).reaches(&[])))?.contains("no server is expected"));
    for nothing in [
        failure(|| drop(to(80).times(0).reaches(&["pod-1"]))),
        failure(|| to(80).times(0).refused()),
        failure(|| to(80).times(0).dropped()),
        failure(|| to(80).times(0).unhandled()),
    ] {
        assert!(nothing?.contains("from client to 10.96.0.10:80/TCP"));
    }
    Ok(())
}

#[test]
fn traffic_tells_what_was_lost_and_nothing_else() -> Result<()> {
    let lab = Topology::new()?;
    let _server = Echo::on(&lab.node, 8080)?;
    let flows = [
        (&lab.client, Protocol::Tcp, "192.0.2.10:8080"),
        (&lab.client, Protocol::Udp, "[2001:db8:2::10]:8080"),
    ];
    let traffic = Traffic::start(flows, Duration::from_millis(1))?;
    traffic.more(20)?;
    let delivered = traffic.delivered();
    assert_eq!((delivered.failed, delivered.kept), (0, 1), "{delivered:?}");
    assert!(delivered.new >= 40 && delivered.all().is_ok(), "{delivered:?}");

    // One SYN is lost; the next, a second later, gets through.
    lab.node.nft(
        "table inet f { chain c { type filter hook input priority 0; \
         tcp dport 8080 tcp flags syn limit rate 1/day burst 1 packets drop; }; }",
    )?;
    traffic.more(5)?;
    lab.node.nft("delete table inet f")?;
    let delivered = traffic.delivered();
    assert_eq!(delivered.failed, 1, "{delivered:?}");
    assert!(delivered.failures[0].contains("1 SYNs had to be sent again"), "{delivered:?}");

    // What the first flow sends is refused, and its connection that is open ended.
    lab.node.nft(
        "table inet f { chain c { type filter hook input priority 0; \
         tcp dport 8080 reject with tcp reset; }; }",
    )?;
    traffic.more(5)?;
    lab.node.nft("delete table inet f")?;
    traffic.more(5)?;
    let delivered = traffic.stop();
    assert!(delivered.failed >= 5 && delivered.all().is_err(), "{delivered:?}");
    let told = |part: &str| delivered.failures.iter().any(|failure| failure.contains(part));
    assert!(told("client to 192.0.2.10:8080/TCP: reset"), "{delivered:?}");
    assert!(told("TCP: the open connection: "), "{delivered:?}");
    assert!(!told("UDP"), "{delivered:?}");
    Ok(())
}
