//! The testbed without the agent: what it expects fails where it should, and nothing gets lost.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use shunt_testbed::{Echo, Fate, Flow, Protocol, Question, Reply, Topology, Traffic, volley};

/// What the agent would do for a Service: port 80 goes to one pod of the node or the other, 81 to
/// the pod on the other node, 82 to the first pod; 83 is rejected, 84 is dropped.
fn rules(family: &str, service: &str, [pod1, pod2, pod3]: [&str; 3]) -> String {
    let to = |pod: &str| match family {
        "ip6" => format!("dnat to [{pod}]:8080"),
        _ => format!("dnat to {pod}:8080"),
    };
    let (mut translations, mut verdicts) = (String::new(), String::new());
    for protocol in ["tcp", "udp", "sctp"] {
        let head = format!("{family} daddr {service} {protocol} dport");
        translations += &format!(
            "{head} 80 numgen random mod 2 0 {}
             {head} 80 {}
             {head} 81 {}
             {head} 82 {}\n",
            to(pod1),
            to(pod2),
            to(pod3),
            to(pod1),
        );
        verdicts += &format!("{head} 83 reject\n{head} 84 drop\n");
    }
    format!(
        "table {family} by-hand {{
             chain translations {{ {translations} }}
             chain arriving {{ type nat hook prerouting priority -100; jump translations; }}
             chain sent {{ type nat hook output priority -100; jump translations; }}
             chain leaving {{
                 type nat hook postrouting priority 100;
                 ct status dnat {family} daddr {pod3} masquerade
                 ct status dnat {family} daddr {pod1} {family} saddr {pod1} masquerade
             }}
             chain verdicts {{ {verdicts} }}
             chain forwarded {{ type filter hook forward priority 0; jump verdicts; }}
             chain sent-filter {{ type filter hook output priority 0; jump verdicts; }}
         }}"
    )
}

/// A topology with [`rules`] for both families and servers on port 8080.
fn lab() -> Result<(Topology, [Echo; 3])> {
    let lab = Topology::new()?;
    let pods_v4 = ["10.244.0.11", "10.244.0.12", "10.244.1.21"];
    lab.node.nft(&rules("ip", "10.96.0.10", pods_v4))?;
    let pods_v6 = ["fd00:244::11", "fd00:244::12", "fd00:244:1::21"];
    lab.node.nft(&rules("ip6", "fd00:96::10", pods_v6))?;
    let echo = |pod| Echo::on(pod, 8080);
    let servers = [echo(&lab.pod1)?, echo(&lab.pod2)?, echo(&lab.pod3)?];
    Ok((lab, servers))
}

/// The kernel limits ICMP errors to a thousand a second, if nobody tells it otherwise.
#[test]
fn no_refusal_is_lost() -> Result<()> {
    let (lab, _servers) = lab()?;
    for to in ["10.96.0.10:83", "[fd00:96::10]:83"] {
        for protocol in Protocol::ALL {
            lab.from(&lab.client).probe(protocol, to).times(500).refused();
        }
    }
    Ok(())
}

/// Of many questions at once each has its own answer, and who refuses shows.
#[test]
fn a_volley_tells_fates_apart() -> Result<()> {
    let (lab, _servers) = lab()?;
    let source = lab.client.ipv4[0].into();
    let masqueraded = lab.node.ipv4[0].into();
    let reached = |source| Fate::Reached { server: "pod-3".to_owned(), source };
    for protocol in Protocol::ALL {
        let mut expected = vec![
            ("10.96.0.10:81", reached(masqueraded)),
            ("10.96.0.10:83", Fate::Icmp(Errno::ECONNREFUSED)),
            ("10.96.0.10:84", Fate::Silence),
            ("10.96.0.11:80", Fate::Icmp(Errno::EHOSTUNREACH)),
        ];
        // Nobody listens there. What the kernel says of SCTP depends on whether it knows it.
        match protocol {
            Protocol::Tcp => expected.push(("192.0.2.10:9", Fate::Reset)),
            Protocol::Udp => expected.push(("192.0.2.10:9", Fate::Icmp(Errno::ECONNREFUSED))),
            Protocol::Sctp => {}
        }
        let questions: Vec<Question> = expected
            .iter()
            .cycle()
            .take(100)
            .map(|(to, _)| Ok(Question { protocol, source: Some(source), to: to.parse()? }))
            .collect::<Result<_>>()?;
        let fates = lab.client.run(|| volley(&questions, Duration::from_secs(2)))?;
        for (fate, (to, expected)) in fates.iter().zip(expected.iter().cycle()) {
            assert_eq!(fate, expected, "{to}/{protocol}");
        }
    }
    Ok(())
}

/// A SYN without an answer is sent again, and a flow that a rule stops is heard again after it.
#[test]
fn a_flow_goes_on_after_silence() -> Result<()> {
    let (lab, _servers) = lab()?;
    let pod_is_silent = |silent: bool| {
        let rule = if silent { "meta l4proto { tcp, udp } th dport 8080 drop" } else { "" };
        lab.pod1.nft(&format!(
            "table inet silence {{}}\ndelete table inet silence\n\
             table inet silence {{\nchain c {{\n\
             type filter hook input priority 0\n{rule}\n}}\n}}"
        ))
    };
    pod_is_silent(true)?;
    let to = "10.96.0.10:82".parse()?;
    let mut flows = lab.client.run(|| {
        let source = IpAddr::from(lab.client.ipv4[0]);
        Ok([Flow::open(Protocol::Tcp, source, to)?, Flow::open(Protocol::Udp, source, to)?])
    })?;
    let mut ask = |done: fn(&[Flow; 2]) -> bool| {
        let start = Instant::now();
        loop {
            Flow::ask_all(&mut flows.each_mut(), Duration::from_millis(300))?;
            if done(&flows) {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no reply");
        }
        Ok::<_, anyhow::Error>(flows.each_ref().map(|flow| flow.reply.clone()))
    };
    let silence = ask(|flows| flows[0].is_half_open() && flows[1].reply == Reply::Nothing)?;
    assert_eq!(silence, [Reply::Nothing, Reply::Nothing]);
    pod_is_silent(false)?;
    let answered = ask(|flows| flows.iter().all(|flow| flow.reply != Reply::Nothing))?;
    assert_eq!(answered, [Reply::Server("pod-1".into()), Reply::Server("pod-1".into())]);
    // An established connection is asked again, too, and one to a rejected port is over.
    let again = ask(|flows| flows.iter().all(|flow| flow.reply != Reply::Nothing))?;
    assert_eq!(again, answered);
    let mut refused = lab
        .client
        .run(|| Flow::open(Protocol::Tcp, lab.client.ipv4[0].into(), "10.96.0.10:83".parse()?))?;
    Flow::ask_all(&mut [&mut refused], Duration::from_secs(2))?;
    assert!(refused.is_over() && refused.reply == Reply::Refused, "{:?}", refused.reply);
    Ok(())
}

/// The message of an expectation that must fail.
fn failure(check: impl Fn()) -> Result<String> {
    let panic = catch_unwind(AssertUnwindSafe(check)).err().context("it did not fail")?;
    panic.downcast::<String>().map(|text| *text).ok().context("a strange panic")
}

#[test]
fn a_failed_expectation_explains_itself() -> Result<()> {
    let (lab, _servers) = lab()?;
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
    let silent = || lab.from(&lab.client).udp("10.96.0.10:84");
    failure(|| silent().refused())?;
    failure(|| silent().unhandled())?;
    let late = failure(|| to(80).within(Duration::from_millis(50)).refused())?;
    assert!(late.contains("of trying"), "{late}");
    Ok(())
}

/// Of no packet at all, anything would be true.
#[test]
fn expectations_without_packets_fail() -> Result<()> {
    let (lab, _servers) = lab()?;
    let probe = || lab.from(&lab.client).tcp("10.96.0.10:80");
    assert!(failure(|| drop(probe().reaches(&[])))?.contains("no server is expected"));
    for nothing in [
        failure(|| drop(probe().times(0).reaches(&["pod-1"]))),
        failure(|| probe().times(0).refused()),
        failure(|| probe().times(0).dropped()),
        failure(|| probe().times(0).unhandled()),
    ] {
        assert!(nothing?.contains("from client to 10.96.0.10:80/TCP"));
    }
    let reached = || probe().reaches(&["pod-1", "pod-2", "pod-3"]);
    assert!(failure(|| drop(reached().at("pod-4").source_masqueraded()))?.contains("expected"));
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
    assert!(told("client to 192.0.2.10:8080/TCP: refused"), "{delivered:?}");
    assert!(told("TCP: the open connection: "), "{delivered:?}");
    assert!(!told("UDP"), "{delivered:?}");
    Ok(())
}
