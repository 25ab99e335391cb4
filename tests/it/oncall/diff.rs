//! `shunt diff`: the plan beside the kernel's tables.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shunt_testbed::{ManifestDir, Netns};

use crate::world::{http_service, run_shunt};

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

/// Asserts that the command finds these differences: everything behind the summary and the notes.
#[track_caller]
fn assert_found(diff: &Diff, expected: &str) {
    let found = diff.stdout.split_once("\n\n").map_or("", |(_, found)| found.trim_end());
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    let found_lines: Vec<&str> = found.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    assert_eq!(found_lines, expected, "{}{}", diff.stdout, diff.stderr);
    assert_eq!(diff.code, Some(1), "{}", diff.stderr);
}

/// The objects, on the node `node-1`.
const OBJECTS: &str = include_str!("diff.yaml");

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
