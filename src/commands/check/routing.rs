//! What the node's routing does with packets of Services: forwarding, reverse path filter, bridges.

use std::collections::BTreeSet;
use std::fs;

use nfnetlink::route::Link;
use shunt_core::model::Family;
use shunt_core::plan::DetectLocal;

use super::{Judgement, NodeFacts, ok, some_of, warn};

/// `None` is a sysctl that cannot be read.
fn is_on(file: &str) -> Option<bool> {
    let value = fs::read_to_string(format!("/proc/sys/net/{file}")).ok()?;
    Some(value.trim() == "1")
}

/// Returns the interfaces with a strict reverse path filter. The larger of the values for all
/// interfaces and for one applies (Documentation/networking/ip-sysctl.rst).
fn strict() -> Vec<String> {
    const FOLDER: &str = "/proc/sys/net/ipv4/conf";
    let value = |name: &str| -> u8 {
        let text = fs::read_to_string(format!("{FOLDER}/{name}/rp_filter")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let all = value("all");
    let names = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut strict: Vec<String> = names
        .filter(|name| !["all", "default", "lo"].contains(&name.as_str()))
        .filter(|name| value(name).max(all) == 1)
        .collect();
    strict.sort();
    strict
}

/// Returns the bridges with veth interfaces, to which pods may be attached.
fn bridges(links: &[Link]) -> Vec<String> {
    let is = |link: &Link, kind: &str| link.kind.as_deref() == Some(kind);
    let members = links.iter().filter(|link| is(link, "veth"));
    let masters: BTreeSet<u32> = members.filter_map(|link| link.master).collect();
    let is_wanted = |link: &&Link| is(link, "bridge") && masters.contains(&link.index);
    links.iter().filter(is_wanted).map(|link| link.name.clone()).collect()
}

pub(super) fn forwarding(facts: &NodeFacts<'_>) -> Judgement {
    let detected = match &facts.node_context.options.detect_local {
        DetectLocal::ClusterCidr(nets) => nets.as_slice(),
        _ => &[],
    };
    let of_node = facts.node_context.node.iter().flat_map(|node| &node.pod_cidrs);
    let has_v6_pods = detected.iter().chain(of_node).any(|net| Family::of_net(net) == Family::V6);
    let v4 = is_on("ipv4/ip_forward");
    let v6 = is_on("ipv6/conf/all/forwarding").filter(|_| has_v6_pods);
    let sysctls = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    let off: Vec<&str> = [v4, v6]
        .into_iter()
        .zip(sysctls)
        .filter(|(on, _)| *on == Some(false))
        .map(|it| it.1)
        .collect();
    match off.is_empty() {
        true if v4.is_none() => Err("cannot read net.ipv4.ip_forward")?,
        true => ok("on"),
        false => warn(
            format!(
                "{} is 0: the node forwards no packets between clients and pods",
                off.join(" and ")
            ),
            format!(
                "set {} in /etc/sysctl.d, unless the network plugin sets it",
                off.iter().map(|name| format!("{name} = 1")).collect::<Vec<_>>().join(" and ")
            ),
        ),
    }
}

pub(super) fn reverse_path_filter(_: &NodeFacts<'_>) -> Judgement {
    let strict = strict();
    match strict.is_empty() {
        true => ok("strict on no interface"),
        false => ok(format!(
            "strict on {}: there the kernel drops IPv4 packets whose route back leads through \
                 another interface",
            some_of(strict)
        )),
    }
}

pub(super) fn bridge_netfilter(facts: &NodeFacts<'_>) -> Judgement {
    let bridges = bridges(facts.links.as_ref()?);
    let why = match is_on("bridge/bridge-nf-call-iptables") {
        // Without br_netfilter, there is no such sysctl.
        _ if bridges.is_empty() => {
            return ok("not needed: no bridge has veth interfaces");
        }
        Some(true) => {
            let text = format!("bridge-nf-call-iptables is 1, for {}", some_of(bridges));
            return ok(text);
        }
        Some(false) => "net.bridge.bridge-nf-call-iptables is 0",
        None => "the module br_netfilter is not loaded",
    };
    warn(
        format!(
            "{why}: pods on one bridge ({}) get replies from each other directly, without the \
             translation back to the Service",
            some_of(bridges)
        ),
        "if pods are on this bridge: load br_netfilter and set net.bridge.bridge-nf-call-iptables = \
         1 and net.bridge.bridge-nf-call-ip6tables = 1",
    )
}
