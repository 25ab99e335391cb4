//! `shunt diff`: the plan beside the rules of kube-proxy, and beside the kernel's tables.
//!
//! `kube-proxy/` has the objects and the rules that kube-proxy 1.36.2 made of them: `rules.nft` in
//! nftables mode, the other two in iptables mode (without matches that count packets). The suite
//! `parity` has the real kube-proxy.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt_testbed::{ManifestDir, Netns, patience, record_not_run};

use crate::world::{CLUSTER_CIDR, World, http_service, http_slices, run_shunt};

const RULES: &str = include_str!("kube-proxy/rules.nft");
const IPTABLES: &str = include_str!("kube-proxy/iptables.rules");
const IP6TABLES: &str = include_str!("kube-proxy/ip6tables.rules");

/// How long the agent may take to answer with what it has programmed.
const CONVERGENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The outcome of `shunt diff`.
struct Diff {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn diff(ns: &Netns, arguments: &[&str]) -> Result<Diff> {
    let output = run_shunt(ns, &[&["diff"], arguments].concat())?;
    Ok(Diff {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs `shunt diff` until its outcome is the expected one: the agent answers with the objects of a
/// sync soon after it.
fn eventually(ns: &Netns, arguments: &[&str], done: impl Fn(&Diff) -> bool) -> Result<Diff> {
    let start = Instant::now();
    loop {
        let found = diff(ns, arguments)?;
        if done(&found) {
            return Ok(found);
        }
        let (stdout, stderr) = (found.stdout, found.stderr);
        ensure!(start.elapsed() < patience(CONVERGENCE), "{:?}\n{stdout}\n{stderr}", found.code);
        thread::sleep(POLL);
    }
}

/// Runs `shunt diff --against kube-proxy` with the recorded objects.
fn against(ns: &Netns, mode: &str, more: &[&str]) -> Result<Diff> {
    let objects = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let objects = objects.join("tests/it/oncall/kube-proxy/objects.yaml");
    let (objects, mode) = (objects.display().to_string(), format!("--proxy-mode={mode}"));
    let mut arguments = vec![
        "--against=kube-proxy",
        "--manifests",
        &objects,
        "--hostname-override=node-1",
        "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
        &mode,
    ];
    arguments.extend(more);
    diff(ns, &arguments)
}

/// A namespace with kube-proxy's rules of nftables mode.
fn nftables() -> Result<Netns> {
    let ns = Netns::new()?;
    ns.nft(RULES)?;
    Ok(ns)
}

/// A namespace with kube-proxy's rules of iptables mode.
fn iptables() -> Result<Netns> {
    let ns = Netns::new()?;
    ns.output_with_input("iptables-nft-restore", &[], IPTABLES)?;
    ns.output_with_input("ip6tables-nft-restore", &[], IP6TABLES)?;
    Ok(ns)
}

/// Asserts that the command finds these differences: everything behind the summary and the notes.
#[track_caller]
fn assert_found(diff: &Diff, expected: &str) {
    let found = diff.stdout.split_once("\n\n").map_or("", |(_, found)| found.trim_end());
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    let found_lines: Vec<&str> = found.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(found_lines, expected, "{}{}", diff.stdout, diff.stderr);
    assert_eq!(diff.code, Some(1), "{}", diff.stderr);
}

#[test]
fn rules_of_kube_proxy_for_the_same_objects_have_no_difference() -> Result<()> {
    for (ns, mode) in [(nftables()?, "nftables"), (iptables()?, "iptables")] {
        let generation = ns.nft_generation()?;
        let found = against(&ns, mode, &[])?;
        let first = format!("no differences: 50 frontends are as in kube-proxy ({mode} mode)\n");
        assert!(found.stdout.starts_with(&first), "{}{}", found.stdout, found.stderr);
        assert_eq!(found.code, Some(0));
        let named = against(&ns, mode, &[&format!("--kube-proxy-mode={mode}")])?;
        assert_eq!(named.stdout, found.stdout);
        assert_eq!(ns.nft_generation()?, generation, "nothing is written");
    }
    Ok(())
}

/// Changes of kube-proxy's rules in nftables mode, and what is found.
const NFTABLES_CHANGES: [(&str, &str); 9] = [
    (
        "delete element ip kube-proxy service-ips { 10.96.1.1 . tcp . 80 }",
        "default/all:http
         10.96.1.1:80/tcp: only in shunt
         + 10.244.0.11:8080
         + 10.244.0.12:8080
         + 10.244.1.21:8080",
    ),
    (
        "delete element ip kube-proxy no-endpoint-nodeports { tcp . 30004 }",
        "default/empty:http
         node port 30004/tcp (IPv4): only in shunt
         + reject",
    ),
    (
        "add element ip kube-proxy no-endpoint-services { 10.96.9.9 . tcp . 1 comment \"a/b:c\" : drop }",
        "a/b:c
         10.96.9.9:1/tcp: only in kube-proxy
         - drop",
    ),
    (
        "delete element ip6 kube-proxy no-endpoint-services { fd00:96::1:4 . tcp . 80 }
         add element ip6 kube-proxy no-endpoint-services { fd00:96::1:4 . tcp . 80 : drop }",
        "default/empty:http
         [fd00:96::1:4]:80/tcp
         - drop
         + reject",
    ),
    (
        "delete element ip kube-proxy firewall-ips { 203.0.113.6 . tcp . 80 }",
        "default/ranges:http
         203.0.113.6:80/tcp
         - all sources
         + only sources in 10.0.0.0/8, 192.0.2.10/32, 203.0.113.6/32",
    ),
    (
        "add element ip kube-proxy nodeport-ips { 192.0.2.11 }",
        "settings
         IPv4, addresses of node ports (nodePortAddresses)
         - 192.0.2.10, 192.0.2.11
         + 192.0.2.10",
    ),
    (
        "flush chain ip6 kube-proxy services
         add rule ip6 kube-proxy services ip6 daddr @cluster-ips meta mark set meta mark | 0x4000",
        "settings
         IPv6, masquerade of traffic to ClusterIPs (masqueradeAll)
         - all
         + not all
         default/affine:http
         [fd00:96::1:5]:80/tcp
         - masquerade
         + no masquerade
         default/all:http
         [fd00:96::1:1]:80/tcp
         - masquerade
         + no masquerade
         default/local:http
         [fd00:96::1:2]:80/tcp
         - masquerade
         + no masquerade
         default/ranges:http
         [fd00:96::1:6]:80/tcp
         - masquerade
         + no masquerade",
    ),
    (
        "flush chain ip6 kube-proxy services
         add rule ip6 kube-proxy services iifname != \"cni*\" ip6 daddr @cluster-ips \
         meta mark set meta mark | 0x4000",
        "settings
         IPv6, traffic of local pods (detectLocalMode)
         - iifname \"cni*\"
         + ip6 saddr fd00:244::/48",
    ),
    ("delete table ip6 kube-proxy", ""),
];

#[test]
fn changes_of_rules_in_nftables_mode_are_found() -> Result<()> {
    for (change, expected) in NFTABLES_CHANGES {
        let ns = nftables()?;
        ns.nft(change)?;
        let found = against(&ns, "nftables", &[])?;
        if expected.is_empty() {
            // Every frontend of the family.
            let summary = "24 of 50 frontends differ between kube-proxy (nftables mode, -) and \
                           shunt (+)\nnote: kube-proxy has no rules for IPv6\n";
            assert!(found.stdout.starts_with(summary), "{}", found.stdout);
            assert!(!found.stdout.contains("\n  - "), "{}", found.stdout);
        } else {
            assert_found(&found, expected);
        }
    }
    Ok(())
}

/// Changes of chains in nftables mode: the chain of a service port, by the start of its name, and
/// its new rules.
const NFTABLES_CHAINS: [(&str, &str, &str); 6] = [
    (
        "all",
        "service-",
        "meta l4proto tcp dnat ip addr . port to numgen random mod 2 map \
         { 0 : 10.244.0.11 . 8080, 1 : 10.244.0.99 . 8080 }",
    ),
    (
        "all",
        "service-",
        "meta l4proto tcp dnat ip addr . port to numgen random mod 4 map { 0 : 10.244.0.11 . 8080, \
         1 : 10.244.0.12 . 8080, 2 : 10.244.1.21 . 8080, 3 : 10.244.1.21 . 8080 }",
    ),
    ("all", "service-", "drop"),
    ("all", "service-", "ct mark 7 drop"),
    ("local", "local-", "meta l4proto tcp dnat ip to 10.244.0.12:8080"),
    ("all", "external-", "goto CHAIN"),
];

#[test]
fn changes_of_chains_in_nftables_mode_are_found() -> Result<()> {
    const ALL: &str = "10.96.1.1:80/tcp, 198.51.100.1:80/tcp, 203.0.113.1:80/tcp, \
                       node port 30001/tcp (IPv4)";
    const EXTERNAL: &str = "198.51.100.1:80/tcp, 203.0.113.1:80/tcp, node port 30001/tcp (IPv4)";
    let expected = [
        format!(
            "default/all:http\n{ALL}\n- 10.244.0.99:8080\n+ 10.244.0.12:8080\n+ 10.244.1.21:8080"
        ),
        format!(
            "default/all:http\n{ALL}
             - 10.244.0.11:8080 (25.0 %)\n- 10.244.0.12:8080 (25.0 %)\n- 10.244.1.21:8080 (50.0 %)
             + 10.244.0.11:8080 (33.3 %)\n+ 10.244.0.12:8080 (33.3 %)\n+ 10.244.1.21:8080 (33.3 %)"
        ),
        format!(
            "default/all:http\n{ALL}\n- drop
             + 10.244.0.11:8080\n+ 10.244.0.12:8080\n+ 10.244.1.21:8080"
        ),
        format!(
            "default/all:http\n{ALL}\n- a rule that shunt cannot read: ct mark 0x00000007\n- no rule
             + 10.244.0.11:8080\n+ 10.244.0.12:8080\n+ 10.244.1.21:8080"
        ),
        "default/local:http
         198.51.100.2:80/tcp, 203.0.113.2:80/tcp, node port 30002/tcp (IPv4)
         - 10.244.0.12:8080\n+ 10.244.0.11:8080"
            .to_owned(),
        format!("default/all:http\n{EXTERNAL}\n- no masquerade\n+ masquerade"),
    ];
    for ((service, prefix, rules), expected) in NFTABLES_CHAINS.into_iter().zip(expected) {
        let ns = nftables()?;
        let named = |prefix: &str| {
            let words = RULES.split_whitespace();
            let end = format!("-default/{service}/tcp/http");
            let mut chains = words.filter(|it| it.starts_with(prefix) && it.ends_with(&end));
            chains.next().map(str::to_owned).context("no chain")
        };
        let (chain, service_chain) = (named(prefix)?, named("service-")?);
        let rules = rules.replace("CHAIN", &service_chain);
        ns.nft(&format!(
            "flush chain ip kube-proxy {chain}\nadd rule ip kube-proxy {chain} {rules}"
        ))?;
        assert_found(&against(&ns, "nftables", &[])?, &expected);
    }
    Ok(())
}

/// Changes of the rules in iptables mode, by a replacement in their text.
const IPTABLES_CHANGES: [(&str, &str, &str); 7] = [
    (
        "--to-destination 10.244.0.12:8080",
        "--to-destination 10.244.0.99:8081",
        "default/all:http
         10.96.1.1:80/tcp, 198.51.100.1:80/tcp, 203.0.113.1:80/tcp, node port 30001/tcp (IPv4)
         - 10.244.0.99:8081
         + 10.244.0.12:8080",
    ),
    (
        "--probability 0.33333333349",
        "--probability 0.5",
        "default/all:http
         10.96.1.1:80/tcp, 198.51.100.1:80/tcp, 203.0.113.1:80/tcp, node port 30001/tcp (IPv4)
         - 10.244.0.11:8080 (50.0 %)
         - 10.244.0.12:8080 (25.0 %)
         - 10.244.1.21:8080 (25.0 %)
         + 10.244.0.11:8080 (33.3 %)
         + 10.244.0.12:8080 (33.3 %)
         + 10.244.1.21:8080 (33.3 %)",
    ),
    (
        "--seconds 10800",
        "--seconds 60",
        "default/affine:http
         10.96.1.5:80/tcp, 198.51.100.5:80/tcp, 203.0.113.5:80/tcp, node port 30005/tcp (IPv4)
         - session affinity of 60 s
         + session affinity of 10800 s",
    ),
    (
        "-s 10.0.0.0/8",
        "-s 10.1.0.0/16",
        "default/ranges:http
         203.0.113.6:80/tcp
         - only sources in 10.1.0.0/16, 192.0.2.10/32, 203.0.113.6/32
         + only sources in 10.0.0.0/8, 192.0.2.10/32, 203.0.113.6/32",
    ),
    (
        "-d 10.96.1.77/32",
        "-d 10.96.1.78/32",
        "default/unnamed
         10.96.1.77:80/tcp: only in shunt
         + reject
         10.96.1.78:80/tcp: only in kube-proxy
         - reject",
    ),
    (
        "--comment \"default/away:http has no local endpoints\" -m tcp --dport 80 -j DROP",
        "--comment \"default/away:http has no local endpoints\" -m tcp --dport 80 -j REJECT",
        "default/away:http
         10.96.1.3:80/tcp, 198.51.100.3:80/tcp, 203.0.113.3:80/tcp
         - reject
         + drop",
    ),
    (
        "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        "-d 192.0.2.10/32 -j KUBE-NODEPORTS",
        "settings
         IPv4, addresses of node ports (nodePortAddresses)
         - 192.0.2.10
         + every address of the node",
    ),
];

#[test]
fn changes_of_rules_in_iptables_mode_are_found() -> Result<()> {
    for (old, new, expected) in IPTABLES_CHANGES {
        let changed = IPTABLES.replace(old, new);
        assert_ne!(changed, IPTABLES, "{old}");
        let ns = Netns::new()?;
        ns.output_with_input("iptables-nft-restore", &[], &changed)?;
        ns.output_with_input("ip6tables-nft-restore", &[], IP6TABLES)?;
        assert_found(&against(&ns, "iptables", &[])?, expected);
    }
    Ok(())
}

/// The interface of another mode may be left over.
#[test]
fn an_interface_without_services_of_ipvs_hides_no_rules() -> Result<()> {
    let ns = Netns::new()?;
    ns.nft(RULES)?;
    ns.ip("link add kube-ipvs0 type veth peer name other")?;
    let found = against(&ns, "nftables", &[])?;
    assert!(matches!(found.code, Some(0 | 1)), "{}{}", found.stdout, found.stderr);
    Ok(())
}

/// The rules of iptables-legacy are outside of nf_tables.
#[test]
fn what_is_not_compared_is_named() -> Result<()> {
    let ns = Netns::new()?;
    if let Err(error) = ns.output("iptables-legacy", &["-t", "nat", "-S"]) {
        let reason = format!("this kernel has no legacy iptables: {error}");
        return record_not_run("it", 1, &reason);
    }
    ns.output_with_input("iptables-legacy-restore", &[], IPTABLES)?;
    let found = against(&ns, "iptables", &[])?;
    assert_eq!(found.code, Some(2), "{}", found.stdout);
    assert!(found.stderr.contains("chains of iptables-legacy here, which are not compared"));
    Ok(())
}

#[test]
fn a_conflict_between_services_explains_a_difference() -> Result<()> {
    let world = World::empty()?;
    let node = &world.lab.node;
    node.nft(RULES)?;
    let objects = include_str!("kube-proxy/objects.yaml");
    world.manifests.write("objects.yaml", objects)?;
    let thief = http_service("thief", &["10.96.1.99"]).external_ips(&["203.0.113.4"]);
    let thief = thief.metadata("creationTimestamp: 2020-01-01T00:00:00Z");
    world.manifests.write("thief.yaml", format!("{thief}{}", http_slices("thief", &[])))?;
    let path = world.manifests.path().display().to_string();
    node.nft(
        "delete element ip kube-proxy no-endpoint-services { 203.0.113.4 . tcp . 80 }
         add element ip kube-proxy no-endpoint-services { 203.0.113.4 . tcp . 80 : drop }
         add element ip kube-proxy no-endpoint-services { 10.96.1.99 . tcp . 80 : goto reject-chain }",
    )?;
    let arguments = [
        "--against=kube-proxy",
        "--manifests",
        &path,
        "--hostname-override=node-1",
        "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
        "--proxy-mode=nftables",
    ];
    assert_found(
        &diff(node, &arguments)?,
        "default/empty:http
         203.0.113.4:80/tcp
         - drop
         + reject
         default/thief claims it, too; shunt gives it to default/empty: load-balancer VIPs take \
         precedence over ExternalIPs at any age",
    );
    Ok(())
}

#[test]
fn differences_are_printed_as_json() -> Result<()> {
    let ns = nftables()?;
    ns.nft(
        "delete element ip kube-proxy no-endpoint-services { 10.96.1.4 . tcp . 80 }
         add element ip kube-proxy no-endpoint-services { 10.96.1.4 . tcp . 80 : drop }",
    )?;
    let found = against(&ns, "nftables", &["-o", "json"])?;
    let found: Value = serde_json::from_str(&found.stdout).context(found.stderr)?;
    let side = |service: Value, kind: &str| {
        json!({
            "servicePort": service,
            "outcome": {"kind": kind, "backends": []},
            "outcomeFromNode": {"kind": kind, "backends": []},
            "affinitySeconds": null,
            "masquerade": false,
            "sources": ["0.0.0.0/0", "::/0"],
        })
    };
    let expected = json!({
        "mode": "nftables",
        "summary": {
            "frontends": 50, "same": 49, "onlyKubeProxy": 0, "onlyShunt": 0,
            "outcome": 1, "backends": 0, "policy": 0,
        },
        "differences": [{
            "servicePort": "default/empty:http",
            "frontend": {"address": "10.96.1.4", "protocol": "tcp", "port": 80},
            "difference": "outcome",
            "kubeProxy": side(Value::Null, "drop"),
            "shunt": side("default/empty:http".into(), "reject"),
            "explanation": null,
        }],
        "settings": [],
        "notes": [],
    });
    assert_eq!(found, expected, "{found:#}");
    Ok(())
}

#[test]
fn a_comparison_without_a_side_fails_with_2() -> Result<()> {
    let ns = Netns::new()?;
    let found = against(&ns, "nftables", &[])?;
    assert_eq!((found.code, found.stdout.as_str()), (Some(2), ""));
    assert!(found.stderr.contains("kube-proxy has no rules in this network namespace"));
    ns.nft(RULES)?;
    let found = against(&ns, "nftables", &["--kube-proxy-mode=iptables"])?;
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("no rules of mode iptables"), "{}", found.stderr);
    let found = diff(&ns, &["--against=kube-proxy"])?;
    assert_eq!(found.code, Some(2));
    assert!(found.stderr.contains("give --manifests"), "{}", found.stderr);
    assert_eq!(diff(&ns, &["--against=nobody"])?.code, Some(2));
    Ok(())
}

/// The objects of the comparison with the kernel, on the node `node-1`.
const OBJECTS: &str = include_str!("kube-proxy/objects.yaml");

/// The flags of the agent and of `shunt diff`.
const FLAGS: [&str; 3] = [
    "--hostname-override=node-1",
    "--cluster-cidr=10.244.0.0/16,fd00:244::/48",
    "--proxy-mode=nftables",
];

/// A namespace with shunt's tables for [`OBJECTS`], which no process owns.
fn programmed() -> Result<(Netns, ManifestDir)> {
    let (ns, manifests) = (Netns::new()?, ManifestDir::new()?);
    manifests.write("objects.yaml", OBJECTS)?;
    let path = manifests.path().display().to_string();
    let arguments = [&["run", "--once", "--own-tables=false", "--manifests", &path], &FLAGS[..]];
    let output = run_shunt(&ns, &arguments.concat())?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((ns, manifests))
}

/// Runs `shunt diff` with these manifests.
fn with_kernel(ns: &Netns, manifests: &ManifestDir, more: &[&str]) -> Result<Diff> {
    let path = manifests.path().display().to_string();
    diff(ns, &[&["--manifests", &path], &FLAGS[..], more].concat())
}

/// Damages to shunt's tables, and the lines that are found.
const DAMAGES: [(&str, &str); 17] = [
    (
        "delete element ip shunt service-ips { 10.96.1.1 . tcp . 80 }",
        "table ip shunt
         map service-ips
         + 10.96.1.1 . tcp . 80 comment \"default/all:http\" : goto lb-3",
    ),
    (
        "add element ip6 shunt service-ips { fd00:96::99 . udp . 53 : drop }",
        "table ip6 shunt
         map service-ips
         - fd00:96::99 . udp . 53 : drop",
    ),
    (
        "delete element ip shunt service-ips { 10.96.1.1 . tcp . 80 }
         add element ip shunt service-ips { 10.96.1.1 . tcp . 80 comment \"x\" : jump lb-2 }",
        "table ip shunt
         map service-ips
         - 10.96.1.1 . tcp . 80 comment \"x\" : jump lb-2
         + 10.96.1.1 . tcp . 80 comment \"default/all:http\" : goto lb-3",
    ),
    (
        "delete element ip shunt service-ips { 10.96.1.1 . tcp . 80 }
         add element ip shunt service-ips { 10.96.1.1 . tcp . 80 : accept }",
        "table ip shunt
         map service-ips
         - 10.96.1.1 . tcp . 80 : accept
         + 10.96.1.1 . tcp . 80 comment \"default/all:http\" : goto lb-3",
    ),
    (
        "add element ip shunt service-nodeports { icmp . 7 : drop }",
        "table ip shunt
         map service-nodeports
         - 1 . 7 : drop",
    ),
    (
        "delete element ip shunt endpoints { 10.96.1.1 . tcp . 80 . 1 }",
        "table ip shunt
         map endpoints
         + 10.96.1.1 . tcp . 80 . 1 : 10.244.0.12 . 8080",
    ),
    (
        "delete element ip shunt endpoints { 10.96.1.1 . tcp . 80 . 1 }
         add element ip shunt endpoints { 10.96.1.1 . tcp . 80 . 1 : 10.244.0.99 . 8081 }
         add element ip shunt endpoints { 10.96.1.1 . tcp . 80 . 7 : 10.244.0.11 . 8080 }",
        "table ip shunt
         map endpoints
         - 10.96.1.1 . tcp . 80 . 1 : 10.244.0.99 . 8081
         + 10.96.1.1 . tcp . 80 . 1 : 10.244.0.12 . 8080
         - 10.96.1.1 . tcp . 80 . 7 : 10.244.0.11 . 8080",
    ),
    (
        "add element ip shunt cluster-ips { 10.96.7.7 }
         delete element ip shunt hairpin { 10.244.0.11 . 10.244.0.11 }
         add element ip shunt hairpin { 10.244.0.11 . 10.244.0.12 }",
        "table ip shunt
         set cluster-ips
         - 10.96.7.7
         set hairpin
         - 10.244.0.11 . 10.244.0.12
         + 10.244.0.11 . 10.244.0.11",
    ),
    (
        "delete element ip shunt allowed-sources { 203.0.113.6 . tcp . 80 . 10.0.0.0/8 }",
        "table ip shunt
         set allowed-sources
         + 203.0.113.6 . tcp . 80 . 10.0.0.0-10.255.255.255",
    ),
    (
        "add rule ip shunt services ip saddr 192.0.2.0/24 tcp dport 80 counter drop comment \"mine\"",
        "table ip shunt
         chain services
         - ip saddr 192.0.2.0/24 meta l4proto tcp th dport 80 counter drop comment \"mine\"",
    ),
    (
        "flush chain ip6 shunt reject-no-endpoints
         add rule ip6 shunt reject-no-endpoints reject with icmpv6 type no-route",
        "table ip6 shunt
         chain reject-no-endpoints
         - reject with icmp 0
         + reject",
    ),
    (
        "insert rule ip shunt lb-3 ct state new,related jump lb-2
         add rule ip shunt lb-3 meta mark 7 accept",
        "table ip shunt
         chain lb-3
         - ct state related,new jump lb-2
         - meta mark 0x00000007 accept",
    ),
    (
        "flush chain ip shunt lb-2",
        "table ip shunt
         chain lb-2
         + jump short-attempt
         + dnat ip addr . port to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
         + goto lb-1",
    ),
    (
        "add chain ip shunt mine { type filter hook forward priority 5; policy drop; }
         add rule ip shunt mine iifname \"eth*\" oifname != \"eth0\" return",
        "table ip shunt
         chain mine
         - chain mine
         - type filter hook forward priority 5; policy drop;
         - iifname \"eth*\" oifname != \"eth0\" return",
    ),
    (
        "add set ip shunt mine { type ipv4_addr; }",
        "table ip shunt
         set mine
         - set mine",
    ),
    (
        "delete table ip6 shunt
         add table ip6 shunt { comment \"another layout\"; }",
        "",
    ),
    ("delete table ip6 shunt", ""),
];

#[test]
fn damages_of_the_tables_are_found() -> Result<()> {
    for (damage, expected) in DAMAGES {
        let (ns, manifests) = programmed()?;
        let intact = with_kernel(&ns, &manifests, &[])?;
        assert_eq!(intact.code, Some(0), "{}{}", intact.stdout, intact.stderr);
        assert_eq!(intact.stdout, "no differences: the kernel holds the plan (50 frontends)\n");
        ns.nft(damage)?;
        let generation = ns.nft_generation()?;
        let found = with_kernel(&ns, &manifests, &[])?;
        if expected.is_empty() {
            // All of the family.
            let first = "table ip6 shunt\n  table\n  ";
            let (_, found) = found.stdout.split_once("\n\n").context(found.stderr)?;
            assert!(found.starts_with(first) && found.contains("\n  + set hairpin\n"), "{found}");
            let rule = "\n  chain reject-no-endpoints\n  + chain reject-no-endpoints\n  + reject\n";
            assert!(found.contains(rule) && !found.contains("table ip shunt"), "{found}");
        } else {
            assert_found(&found, expected);
        }
        assert_eq!(ns.nft_generation()?, generation, "nothing is written");
    }
    Ok(())
}

#[test]
fn the_order_of_backends_is_no_difference() -> Result<()> {
    let (ns, manifests) = programmed()?;
    let slot = |index: u8, address: &str| {
        let key = format!("10.96.1.1 . tcp . 80 . {index}");
        format!(
            "delete element ip shunt endpoints {{ {key} }}
             add element ip shunt endpoints {{ {key} : {address} . 8080 }}\n"
        )
    };
    ns.nft(&format!("{}{}", slot(0, "10.244.1.21"), slot(2, "10.244.0.11")))?;
    assert_eq!(with_kernel(&ns, &manifests, &[])?.code, Some(0));
    ns.nft(&slot(0, "10.244.0.12"))?;
    assert_found(
        &with_kernel(&ns, &manifests, &[])?,
        "table ip shunt
         map endpoints
         - 10.96.1.1 . tcp . 80 . 1 : 10.244.0.12 . 8080
         + 10.96.1.1 . tcp . 80 . 1 : 10.244.1.21 . 8080",
    );
    Ok(())
}

#[test]
fn new_objects_are_differences_and_json_names_them() -> Result<()> {
    let (ns, manifests) = programmed()?;
    manifests.write("new.yaml", http_service("new", &["10.96.1.99"]))?;
    let found = with_kernel(&ns, &manifests, &["-o", "json"])?;
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    let found: Value = serde_json::from_str(&found.stdout).context(found.stderr)?;
    let place = |name: &str, line: &str| {
        let (kernel, plan): ([&str; 0], _) = ([], [line]);
        json!({"family": "IPv4", "place": name, "kernel": kernel, "plan": plan})
    };
    let verdict = "10.96.1.99 . tcp . 80 comment \"default/new:http\" : goto reject-no-endpoints";
    let expected = json!({
        "summary": {"frontends": 51, "onlyKernel": 0, "onlyPlan": 2},
        "differences": [place("set cluster-ips", "10.96.1.99"), place("map service-ips", verdict)],
        "notes": [],
    });
    assert_eq!(found, expected, "{found:#}");
    Ok(())
}

#[test]
fn the_tables_of_a_running_agent_are_compared_with_its_plan() -> Result<()> {
    let world = World::with_web()?;
    let agent = world.plain_agent().config(CLUSTER_CIDR)?;
    let _agent = agent.arg("--own-tables=false").arg("--drift-check-period=0").start()?;
    let node = &world.lab.node;
    eventually(node, &[], |found| found.code == Some(0))?;
    node.nft("delete element ip shunt cluster-ips { 10.96.0.10 }")?;
    assert_found(&diff(node, &[])?, "table ip shunt\nset cluster-ips\n+ 10.96.0.10");
    Ok(())
}

#[test]
fn the_plan_comes_from_the_running_agent() -> Result<()> {
    let world = World::with_web()?;
    let _agent = world.start()?;
    let node = &world.lab.node;
    node.nft(RULES)?;
    let has_web = |found: &Diff| found.stdout.contains("\ndefault/web:tcp\n");
    let found = eventually(node, &["--against=kube-proxy"], has_web)?;
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    assert!(found.stdout.contains(": only in shunt\n"), "{}", found.stdout);
    let objects = include_str!("kube-proxy/objects.yaml");
    world.manifests.write("web.yaml", "")?;
    world.manifests.write("node.yaml", objects)?;
    eventually(node, &["--against=kube-proxy"], |found| found.code == Some(0))?;
    Ok(())
}
