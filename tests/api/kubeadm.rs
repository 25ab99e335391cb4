//! What kubeadm and EKS have in kube-proxy's ConfigMaps, handed to the agent as it is.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use shunt_fake_apiserver::{Api, Case, both};
use shunt_testbed::{Agent, Exposition, HEALTH_PORT, METRICS_PORT, Protocol, Scratch};

use crate::world::{SHUNT, WEB, World};

pub(crate) fn cases() -> Vec<Case> {
    both![
        the_configuration_of_kubeadm_programs_the_node,
        the_configuration_of_eks_programs_the_node,
    ]
}

/// Where kubeadm's DaemonSet mounts the kubeconfig, which is beside the configuration in the
/// ConfigMap.
const MOUNTED: &str = "/var/lib/kube-proxy/kubeconfig.conf";

/// Where that of EKS mounts it, from a ConfigMap of its own.
const MOUNTED_ON_EKS: &str = "/var/lib/kube-proxy/kubeconfig\n";

fn fixture(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn the_configuration_of_kubeadm_programs_the_node(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let config = fixture("kubeadm-kube-proxy.yaml")?;
    assert!(config.contains(MOUNTED), "{config}");
    let scratch = Scratch::new()?;
    let file = scratch.path().join("config.conf");
    let kubeconfig = world.kubeconfig.path().display().to_string();
    fs::write(&file, config.replace(MOUNTED, &kubeconfig))?;
    // The arguments are those of kubeadm's DaemonSet; the builder names the node as it does.
    let agent = Agent::builder(SHUNT, &world.lab.node)
        .arg(format!("--config={}", file.display()))
        .start()?;

    let pods = ["pod-1", "pod-2", "pod-3"];
    let (client, pod) = (world.lab.from(&world.lab.client), world.lab.from(&world.lab.pod1));
    let from_outside =
        ["10.96.0.10:80", "192.0.2.10:30080", "[2001:db8:2::10]:30080", "203.0.113.10:80"];
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for to in from_outside {
            client.probe(protocol, to).reaches(&pods);
        }
        for to in WEB {
            pod.probe(protocol, to).reaches(&pods);
        }
    }
    assert_health(&agent)?;
    assert_metrics(&agent)?;
    let log = agent.log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    agent.stop()
}

fn the_configuration_of_eks_programs_the_node(api: Api) -> Result<()> {
    let world = World::with_web(api)?;
    let config = fixture("eks-kube-proxy.yaml")?;
    assert!(config.contains(MOUNTED_ON_EKS), "{config}");
    let scratch = Scratch::new()?;
    let file = scratch.path().join("config");
    let kubeconfig = format!("{}\n", world.kubeconfig.path().display());
    fs::write(&file, config.replace(MOUNTED_ON_EKS, &kubeconfig))?;
    let agent = Agent::builder(SHUNT, &world.lab.node)
        .arg(format!("--config={}", file.display()))
        .start()?;
    let pods = ["pod-1", "pod-2", "pod-3"];
    world.lab.from(&world.lab.client).tcp("192.0.2.10:30080").reaches(&pods);
    for to in WEB {
        world.lab.from(&world.lab.pod1).tcp(to).reaches(&pods);
    }
    assert_health(&agent)?;
    agent.stop()
}

fn assert_health(agent: &Agent) -> Result<()> {
    for (path, keys) in [
        ("/healthz", &["currentTime", "healthy", "lastUpdated", "nodeEligible", "status"][..]),
        ("/livez", &["currentTime", "healthy", "lastUpdated", "status"]),
    ] {
        let answer = agent.http_get(HEALTH_PORT, path)?;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let body: Value = serde_json::from_str(&answer.body)?;
        let has: Vec<&String> = body.as_object().context("an object")?.keys().collect();
        assert_eq!(has, keys, "{path}: {body}");
        assert_eq!(body["status"]["IPv6"]["healthy"], true, "{path}: {body}");
    }
    Ok(())
}

fn assert_metrics(agent: &Agent) -> Result<()> {
    let answer = agent.http_get(METRICS_PORT, "/metrics")?;
    assert_eq!(answer.status, 200);
    let scraped = Exposition::parse(&answer.body)?;
    // All that begins with this is there from the start; others need something that happens.
    for line in fixture("metrics.txt")?.lines().filter(|line| line.starts_with("kubeproxy_")) {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let family = scraped.families.iter().find(|family| family.name == name);
        let family = family.with_context(|| format!("no {name} in {}", answer.body))?;
        assert_eq!(family.kind, kind, "{name}");
        assert!(!family.samples.is_empty(), "{name}");
    }
    let asked = scraped.families.iter().find(|family| family.name == "rest_client_requests_total");
    let asked = asked.map(|family| &family.samples[..]).unwrap_or_default();
    let answered = |code: &str| asked.iter().any(|sample| sample.labels["code"] == code);
    assert!(answered("200") && !answered("<error>"), "{asked:?}");
    assert_eq!(agent.http_get(METRICS_PORT, "/proxyMode")?.body, "nftables");
    let configz: Value = serde_json::from_str(&agent.http_get(METRICS_PORT, "/configz")?.body)?;
    let cluster_cidr = &configz["kubeproxy.config.k8s.io"]["clusterCIDR"];
    assert_eq!(cluster_cidr, "10.244.0.0/16", "{configz}");
    assert_eq!(agent.http_get(METRICS_PORT, "/healthz")?.body, "ok");
    Ok(())
}
