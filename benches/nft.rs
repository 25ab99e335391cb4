//! The same state written by `nft -f`, in the layout of kube-proxy's nftables mode: a chain for each
//! Service port, with a numgen map of its own, and a chain for each endpoint.
//!
//! The text is ours, in that layout; kube-proxy hands such a text to `nft -f -` likewise.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use shunt_core::model::{Change, EndpointSlice};
use shunt_testbed::Netns;

use super::Size;
use super::cluster::{load, median, open, service, slice};
use super::table::Table;

/// The kernel's time for anonymous maps is quadratic: the larger size takes half a minute.
const SIZES: [Size; 2] = [(1_000, 10), (10_000, 10)];
const RUNS: usize = 3;

pub(crate) fn measure(table: &mut Table, sizes: &[Size]) {
    if let Err(reason) = Command::new("nft").arg("--version").output() {
        println!("nft -f in kube-proxy's layout: not measured: cannot run nft: {reason}");
        return;
    }
    for size in if sizes.is_empty() { &SIZES[..] } else { sizes } {
        let runs = if size.0 > 1_000 { 1 } else { RUNS };
        let mut ours = (Vec::new(), Vec::new());
        let mut theirs = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let (start, change) = shunt(*size);
            ours.0.push(start);
            ours.1.push(change);
            let (start, change) = nft(*size);
            theirs.0.push(start);
            theirs.1.push(change);
        }
        let beside = "nft -f, kube-proxy's layout";
        table.of(runs).times("cold start", *size, median(ours.0), beside, median(theirs.0));
        table.of(runs).times("one endpoint more", *size, median(ours.1), beside, median(theirs.1));
    }
}

/// The number of the Service that gets one endpoint more.
fn changed(size: Size) -> u32 {
    size.0 / 2
}

fn shunt(size: Size) -> (Duration, Duration) {
    let ns = Netns::new().expect("a namespace");
    let mut dataplane = open(&ns);
    load(&mut dataplane, size);
    let started = Instant::now();
    dataplane.sync().expect("a commit");
    let start = started.elapsed();
    let started = Instant::now();
    dataplane.apply(Change::slice(slice(changed(size), size.1 + 1, 0)));
    dataplane.sync().expect("a commit");
    (start, started.elapsed())
}

fn nft(size: Size) -> (Duration, Duration) {
    let ns = Netns::new().expect("a namespace");
    let (services, endpoints) = size;
    let mut text = BASE.to_owned();
    let slices: Vec<EndpointSlice> = (0..services).map(|n| slice(n, endpoints, 0)).collect();
    for (n, slice) in (0..).zip(&slices) {
        for (at, _) in slice.endpoints.iter().enumerate() {
            endpoint(&mut text, n, slice, at);
        }
        balance(&mut text, n, slice);
        let ip = service(n).cluster_ips[0];
        writeln!(text, "add element ip kube-proxy cluster-ips {{ {ip} }}").expect("a String");
        writeln!(
            text,
            "add element ip kube-proxy service-ips {{ {ip} . tcp . 80 : goto {} }}",
            service_chain(n)
        )
        .expect("a String");
    }
    let start = run(&ns, &text);

    let n = changed(size);
    let more = slice(n, endpoints + 1, 0);
    let mut text = String::new();
    endpoint(&mut text, n, &more, endpoints as usize);
    balance(&mut text, n, &more);
    (start, run(&ns, &text))
}

fn run(ns: &Netns, text: &str) -> Duration {
    let started = Instant::now();
    ns.output_with_input("nft", &["-f", "-"], text).expect("a transaction of nft");
    started.elapsed()
}

const BASE: &str = "\
add table ip kube-proxy
add chain ip kube-proxy mark-for-masquerade
add rule ip kube-proxy mark-for-masquerade mark set mark or 0x4000
add chain ip kube-proxy masquerading
add rule ip kube-proxy masquerading mark and 0x4000 == 0 return
add rule ip kube-proxy masquerading mark set mark xor 0x4000
add rule ip kube-proxy masquerading masquerade fully-random
add set ip kube-proxy cluster-ips { type ipv4_addr ; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add chain ip kube-proxy services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
add rule ip kube-proxy nat-prerouting jump services
add chain ip kube-proxy nat-output { type nat hook output priority -100 ; }
add rule ip kube-proxy nat-output jump services
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
add rule ip kube-proxy nat-postrouting jump masquerading
";

fn service_chain(n: u32) -> String {
    format!("service-{n:08X}-bench/service-{n}/tcp/http")
}

fn endpoint_chain(n: u32, address: IpAddr) -> String {
    format!("endpoint-{n:08X}-bench/service-{n}/tcp/http__{address}/8080")
}

/// The chain of one endpoint.
fn endpoint(text: &mut String, n: u32, slice: &EndpointSlice, at: usize) {
    let address = slice.endpoints.get(at).map_or(Ipv4Addr::UNSPECIFIED.into(), |e| e.address);
    let chain = endpoint_chain(n, address);
    writeln!(
        text,
        "add chain ip kube-proxy {chain}\n\
         add rule ip kube-proxy {chain} ip saddr {address} jump mark-for-masquerade\n\
         add rule ip kube-proxy {chain} meta l4proto tcp dnat to {address}:8080"
    )
    .expect("a String");
}

/// The chain of a Service port, its rules written anew.
fn balance(text: &mut String, n: u32, slice: &EndpointSlice) {
    let chain = service_chain(n);
    let ip = service(n).cluster_ips[0];
    let goto = slice.endpoints.iter().enumerate();
    let goto: Vec<String> = goto
        .map(|(at, endpoint)| format!("{at} : goto {}", endpoint_chain(n, endpoint.address)))
        .collect();
    writeln!(
        text,
        "add chain ip kube-proxy {chain}\n\
         flush chain ip kube-proxy {chain}\n\
         add rule ip kube-proxy {chain} ip daddr {ip} tcp dport 80 ip saddr != 10.244.0.0/16 \
         jump mark-for-masquerade\n\
         add rule ip kube-proxy {chain} numgen random mod {} vmap {{ {} }}",
        goto.len(),
        goto.join(" , ")
    )
    .expect("a String");
}
