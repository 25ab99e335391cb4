//! What the agent does to the system, seen from outside of it: system calls.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::TcpListener;
use std::{fs, iter};

use anyhow::{Context, Result, ensure};
use shunt_testbed::{EndpointSlice, Protocol, Service, TempDir};

use crate::world::{CLUSTER_CIDR, World, cluster_ip_service, manifest};

/// Enough for a batch that does not fit [`DEFAULT_SEND_BUFFER`], yet does fit the largest buffer
/// (twice as large) that one gets without privileges outside of a user namespace.
const SERVICES: u16 = 600;
const ENDPOINTS: u16 = 10;
/// What a socket sends at once if nobody asks for more: `net.core.wmem_default`.
const DEFAULT_SEND_BUFFER: usize = 212_992;

fn many_services() -> Result<String> {
    let mut text = String::new();
    for number in 0..SERVICES {
        let name = format!("service-{number}");
        let ip = format!("10.97.{}.{}", number / 256, number % 256);
        let service = Service::new(&name).cluster_ips(&[&ip]).port("http", Protocol::Tcp, 80);
        let slice = EndpointSlice::v4(&name).port("http", Protocol::Tcp, 8080);
        let slice = (0..ENDPOINTS).fold(slice, |slice, endpoint| {
            let place = number * ENDPOINTS + endpoint;
            slice.endpoint(&format!("10.245.{}.{}", place / 256, place % 256), "nodeName: node-2")
        });
        write!(text, "{service}{slice}")?;
    }
    Ok(text)
}

#[test]
fn everything_is_one_transaction_in_one_system_call() -> Result<()> {
    let world = World::with_web()?;
    world.manifests.write("many.yaml", many_services()?)?;
    let trace = world.manifests.path().with_file_name("trace");
    let trace_name = trace.display().to_string();
    let generation = world.lab.node.nft_generation()?;
    let strace = ["strace", "-f", "-qq", "-s", "0", "-o", &trace_name, "-e"];
    let strace = [&strace[..], &["trace=sendmsg,sendto,sendmmsg"]].concat();
    let agent = world.agent(CLUSTER_CIDR)?.arg("--own-tables=true");
    let output = agent.wrapper(&strace).once()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.lab.node.nft_generation()?, generation + 1, "one transaction");
    world.assert_web_works();

    let trace = fs::read_to_string(&trace)?;
    let mut sent: Vec<usize> = trace.lines().filter_map(bytes_sent).collect();
    sent.sort_unstable();
    let largest = sent.pop().context("nothing was sent")?;
    assert!(largest > DEFAULT_SEND_BUFFER, "only {largest} bytes; all calls sent {sent:?}");
    // A kernel without owners for tables refuses the first attempt as a whole.
    let table = world.lab.node.output("nft", &["list", "table", "ip", "shunt"])?;
    if !table.contains("\n\tflags ") {
        sent.pop_if(|bytes| *bytes == largest).context("nobody has tried to own the tables")?;
    }
    // The rest are questions: the generation, the tables that are there.
    assert!(sent.iter().sum::<usize>() < 10_000, "besides {largest} bytes, calls sent {sent:?}");
    Ok(())
}

/// The result of a traced call that sends: `123 sendto(…) = 456`, also resumed in a later line.
fn bytes_sent(line: &str) -> Option<usize> {
    line.rsplit_once(" = ")?.1.split_whitespace().next()?.parse().ok()
}

#[test]
fn the_agent_starts_no_program() -> Result<()> {
    let world = World::with_web()?;
    let trace = world.manifests.path().with_file_name("trace");
    let trace_name = trace.display().to_string();
    // With `-D` the tracer is the child, so the process that was started becomes the agent.
    let strace = ["strace", "-D", "-f", "-qq", "-o", &trace_name, "-e", "trace=process"];
    let agent = world.agent(CLUSTER_CIDR)?.wrapper(&strace).start()?;
    let marker = cluster_ip_service("marker", &["10.96.0.99"]);
    world.manifests.write("marker.yaml", manifest(&marker, "marker", &[&world.lab.pod1]))?;
    world.lab.from(&world.lab.client).tcp("10.96.0.99:80").eventually().reaches(&["pod-1"]);
    agent.stop()?;

    let trace = fs::read_to_string(&trace)?;
    let calls: Vec<&str> =
        trace.lines().filter(|line| line.contains("exec") || line.contains("fork(")).collect();
    // The one call is strace's own, which turns into the agent.
    assert_eq!(calls.len(), 1, "{}", calls.join("\n"));
    assert!(calls[0].contains("shunt"), "{}", calls[0]);
    Ok(())
}

/// The crate `mnl` calls libmnl, a shared library in tests: stacks show which calls are its own.
#[test]
fn all_netlink_traffic_goes_through_libmnl() -> Result<()> {
    let world = World::with_web()?;
    let folder = TempDir::new()?;
    let name = folder.path().join("thread").display().to_string();
    // One file per thread, and a stack below each call.
    let strace = ["strace", "-D", "-ff", "-k", "-yy", "-qq", "-s", "0", "-o", &name, "-e"];
    let strace = [&strace[..], &["trace=%network,read,readv,write,writev"]].concat();
    let agent = world.agent(CLUSTER_CIDR)?.arg("--kube-proxy-check-period=100ms");
    let agent = agent.wrapper(&strace).start()?;
    world.assert_web_works();
    let _listener = world.lab.node.run(|| Ok(TcpListener::bind("0.0.0.0:30080")?))?;
    agent.wait_for_log(&["WARN", "TCP node port 30080"])?;
    agent.stop()?;

    let mut seen = BTreeSet::new();
    for file in fs::read_dir(folder.path())? {
        let trace = fs::read_to_string(file?.path())?;
        let mut lines = trace.lines().peekable();
        while let Some(call) = lines.next() {
            let stack: Vec<&str> =
                iter::from_fn(|| lines.next_if(|line| line.starts_with(" > "))).collect();
            // An option is neither sent nor read. A call that the end of the process cuts off has no stack.
            if !call.contains("NETLINK") || call.contains("sockopt(") || call.ends_with("= ?") {
                continue;
            }
            let caller = stack.iter().find(|frame| !frame.contains("/libc.so."));
            // libmnl, or the crate where libmnl has jumped to libc.
            let is_mnl =
                caller.is_some_and(|it| it.contains("/libmnl.so.") || it.contains("(mnl::"));
            ensure!(is_mnl, "{call}\n{}", stack.join("\n"));
            let words = call.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            seen.extend(words.filter(|word| word.starts_with("NETLINK_")).map(str::to_owned));
            seen.extend(call.split_once('(').map(|(name, _)| name.to_owned()));
        }
    }
    let expected = ["NETLINK_NETFILTER", "NETLINK_ROUTE", "NETLINK_SOCK_DIAG"];
    let calls = ["bind", "getsockname", "recvmsg", "sendto", "socket"];
    assert!(seen.iter().eq(expected.iter().chain(&calls)), "{seen:?}");
    Ok(())
}
