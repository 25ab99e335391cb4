//! Services asked by name, also those without a frontend, and manifests alone.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shunt_testbed::{Host, Service};

use super::{Says, explain};
use crate::table::{self, Family, Frontend, ip, service_of};
use crate::world::{SHUNT, World, cluster_ip_service, slices};

const RANGES: u8 = 40;
const PROXY: u8 = 41;
const WEB: u8 = 42;
const V4_ONLY: u8 = 43;
const OLDER: u8 = 44;
const YOUNGER: u8 = 45;
const CLAIMS_CLUSTER_IP: u8 = 46;
const VICTIM: u8 = 47;
const OTHER_PROXY: u8 = 49;
const SERVICE_CIDR: &str = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
    metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, 'fd00:96::/112']}\n";

fn name(number: u8) -> String {
    format!("service-{number}")
}

fn objects(world: &World) -> Vec<(String, String)> {
    let [pod1, pod2] = [&world.lab.pod1, &world.lab.pod2];
    let plain = |number: u8| service_of(&name(number), number);
    let born = |year: u16| format!("creationTimestamp: {year}-01-01T00:00:00Z");
    let with = |number: u8, service: Service, pod: &Host| {
        (name(number), format!("{service}{}", slices(&name(number), &[pod])))
    };
    let vips = Family::ALL.map(|family| {
        let vip = ip(Frontend::LoadBalancer, family, PROXY);
        format!("ip: \"{vip}\", ipMode: Proxy")
    });
    let proxy = plain(PROXY).load_balancer(&[]).ingress(&vips[0]).ingress(&vips[1]);
    let victim = Family::ALL.map(|family| ip(Frontend::ClusterIp, family, VICTIM).to_string());
    let contested = Family::ALL.map(|family| ip(Frontend::ExternalIp, family, OLDER).to_string());
    let cluster_ip = |number: u8| ip(Frontend::ClusterIp, Family::V4, number).to_string();
    let no_frontend = |service: Service, name: &str| (name.to_owned(), service.to_string());
    vec![
        with(
            RANGES,
            plain(RANGES).spec("loadBalancerSourceRanges: [10.244.0.0/16, 'fd00:244::/48']"),
            pod1,
        ),
        with(PROXY, proxy, pod1),
        with(WEB, plain(WEB), pod1),
        with(V4_ONLY, cluster_ip_service(&name(V4_ONLY), &[&cluster_ip(V4_ONLY)]), pod1),
        with(OLDER, plain(OLDER).metadata(&born(2020)), pod1),
        with(
            YOUNGER,
            plain(YOUNGER).metadata(&born(2021)).external_ips(&[&contested[0], &contested[1]]),
            pod2,
        ),
        with(
            CLAIMS_CLUSTER_IP,
            plain(CLAIMS_CLUSTER_IP).metadata(&born(2019)).external_ips(&[&victim[0], &victim[1]]),
            pod2,
        ),
        with(VICTIM, plain(VICTIM).metadata(&born(2020)), pod1),
        with(
            OTHER_PROXY,
            plain(OTHER_PROXY).label("service.kubernetes.io/service-proxy-name", "other"),
            pod1,
        ),
        no_frontend(cluster_ip_service("headless", &["None"]), "headless"),
        no_frontend(cluster_ip_service("no-cluster-ip", &[]), "no-cluster-ip"),
        (
            "external-name".to_owned(),
            "---\napiVersion: v1\nkind: Service\n\
             metadata: {name: external-name, namespace: default}\n\
             spec: {type: ExternalName, externalName: example.org}\n"
                .to_owned(),
        ),
    ]
}

fn world() -> Result<World> {
    let world = World::new()?;
    world.manifests.write("cidr.yaml", SERVICE_CIDR)?;
    for (name, content) in objects(&world) {
        world.manifests.write(&format!("{name}.yaml"), content)?;
    }
    Ok(world)
}

/// A question by name.
struct Named {
    arguments: &'static [&'static str],
    says: Says,
    codes: &'static [&'static str],
    /// The number of frontends.
    frontends: usize,
}

const NAMED: &[Named] = &[
    Named {
        arguments: &["default/headless"],
        says: Says::NotAService,
        codes: &["ignored-headless"],
        frontends: 0,
    },
    Named {
        arguments: &["default/external-name"],
        says: Says::NotAService,
        codes: &["ignored-external-name"],
        frontends: 0,
    },
    Named {
        arguments: &["default/service-49"],
        says: Says::NotAService,
        codes: &["ignored-other-proxy"],
        frontends: 0,
    },
    Named {
        arguments: &["default/no-cluster-ip"],
        says: Says::NotAService,
        codes: &["no-cluster-ip"],
        frontends: 0,
    },
    Named {
        arguments: &["default/no-such"],
        says: Says::NotAService,
        codes: &["no-such-service"],
        frontends: 0,
    },
    // An IPv4 Service has nothing for an IPv6 client.
    Named {
        arguments: &["default/service-43", "--from=fd00:244::11"],
        says: Says::NotAService,
        codes: &["no-cluster-ip"],
        frontends: 0,
    },
    Named {
        arguments: &["default/service-43", "--from=10.244.0.12"],
        says: Says::Delivered,
        codes: &[],
        frontends: 3,
    },
    // All frontends of one port, in both families.
    Named {
        arguments: &["default/service-42:tcp"],
        says: Says::Delivered,
        codes: &[],
        frontends: 8,
    },
    // Source ranges concern the VIP alone, and the worst counts.
    Named {
        arguments: &["default/service-40:tcp", "--from=192.0.2.100"],
        says: Says::Dropped,
        codes: &["source-not-allowed"],
        frontends: 4,
    },
    // The lost frontends are explained, too: they belong to the other Service.
    Named {
        arguments: &["default/service-45:udp", "--from=192.0.2.100"],
        says: Says::Delivered,
        codes: &["claimed-by-other-service"],
        frontends: 4,
    },
    Named {
        arguments: &["default/service-46:80", "--from=10.244.0.11"],
        says: Says::Delivered,
        codes: &["claimed-by-other-service"],
        frontends: 12,
    },
];

#[test]
fn services_are_explained_by_name() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    let mut failed = String::new();
    for Named { arguments, says, codes, frontends } in NAMED {
        let answer = explain(&world, arguments)?;
        let (word, status) = says.contract();
        let expected: BTreeSet<&str> = codes.iter().copied().collect();
        let all = answer.json["frontends"].as_array().map_or(0, Vec::len);
        let found = (answer.json["verdict"].as_str(), answer.status, answer.codes(), all);
        if found != (Some(word), status, expected, *frontends) {
            failed += &format!("  {arguments:?}: {found:?}, not {word} {codes:?} {frontends}\n");
        }
    }
    ensure!(failed.is_empty(), "rows of the table that do not hold:\n{failed}");
    Ok(())
}

/// The node has no IPv6 route to the ClusterIP, and its own IPv4 connections still have an answer.
#[test]
fn frontend_that_cannot_be_asked_hides_no_other() -> Result<()> {
    let world = world()?;
    let _agent = world.start()?;
    world.lab.node.ip("route del ::/0 via 2001:db8:2::1")?;
    let answer = explain(&world, &["default/service-42"])?;
    ensure!(answer.codes().contains("not-explained"), "{:#}", answer.json);
    ensure!((answer.json["verdict"] == "unknown") && answer.status == 1, "{:#}", answer.json);
    let frontends = answer.json["frontends"].as_array().into_iter().flatten();
    let delivered = frontends.filter(|frontend| frontend["verdict"] == "delivered");
    ensure!(delivered.count() >= 3, "{:#}", answer.json);
    Ok(())
}

/// On any machine: the node's addresses are those of the Node.
#[test]
fn manifests_are_explained_by_the_addresses_of_the_node() -> Result<()> {
    let world = world()?;
    let asked = |to: &str, more: &[&str]| -> Result<(String, Value)> {
        let manifests = format!("--manifests={}", world.manifests.path().display());
        let node = format!("--hostname-override={}", world.lab.node.name);
        let mut command = Command::new(SHUNT);
        command.args(["explain", &manifests, &node, "--output=json"]);
        let output = command.args(["--to", to]).args(more).output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let json: Value = serde_json::from_slice(&output.stdout).context(errors)?;
        let code = json["findings"][0]["code"].as_str().unwrap_or_default();
        Ok((format!("{} {code}", json["verdict"].as_str().unwrap_or_default()), json))
    };
    let six = format!("[2001:db8:2::10]:{}", table::node_port(WEB));
    let nftables = &["--proxy-mode=nftables"][..];
    let prefix = &["--nodeport-addresses=192.0.2.0/24"][..];
    let other_proxy = format!("192.0.2.10:{}", table::node_port(OTHER_PROXY));
    let cluster_ip = format!("{}:80", ip(Frontend::ClusterIp, Family::V4, OTHER_PROXY));
    for (to, more, expected) in [
        ("192.0.2.10:30112", &[][..], "delivered "),
        ("192.0.2.10:30112", nftables, "delivered "),
        ("192.0.2.10:30112", prefix, "delivered "),
        ("192.0.2.20:30112", &[], "not-a-service "),
        ("127.0.0.1:30112", nftables, "not-a-service node-port-address-not-selected"),
        (&other_proxy, &[], "not-a-service ignored-other-proxy"),
        (&cluster_ip, &[], "dropped ignored-other-proxy"),
    ] {
        let (found, json) = asked(to, more)?;
        assert_eq!(found, expected, "{to} {more:?}: {json:#}");
    }
    let (found, json) = asked(&six, &[])?;
    assert_eq!(found, "delivered ", "{json:#}");
    world.manifests.remove("node.yaml")?;
    let (found, json) = asked("192.0.2.10:30112", &[])?;
    assert_eq!(found, "not-a-service node-port-address-not-selected", "{json:#}");
    let summary = json["summary"].as_str().unwrap_or_default();
    assert!(
        summary.ends_with(&format!("manifests contain no Node {}", world.lab.node.name)),
        "{summary}"
    );
    Ok(())
}
