//! Values that move with what happens.

use anyhow::Result;
use shunt_testbed::{EndpointSlice, Exposition, METRICS_PORT, Protocol, Service};

use super::exported::{scrape, wait_for_sample, wait_for_services};
use crate::world::{CLUSTER_CIDR, World, http_service, http_slices, manifest, web};

const V4: (&str, &str) = ("ip_family", "IPv4");
const V6: (&str, &str) = ("ip_family", "IPv6");

/// The value of a sample that is there.
#[track_caller]
#[allow(clippy::panic, reason = "helpers of tests stop the test")]
fn value(scraped: &Exposition, name: &str, labels: &[(&str, &str)]) -> f64 {
    let found = scraped.value(name, labels);
    found.unwrap_or_else(|| panic!("no {name} {labels:?} in\n{}", scraped.outline()))
}

#[test]
fn values_move_with_services() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().start()?;
    let empty = wait_for_sample(&agent, "shunt_elements", &[V6, ("map", "service-ips")])?;
    for (name, labels, expected) in [
        ("shunt_services", &[][..], 0.0),
        ("shunt_endpoint_slices", &[], 0.0),
        ("shunt_frontends", &[V4], 0.0),
        ("shunt_elements", &[V6, ("map", "service-ips")], 0.0),
        ("shunt_commit_failures_total", &[], 0.0),
        ("kubeproxy_sync_proxy_rules_service_changes_total", &[], 0.0),
    ] {
        assert_eq!(value(&empty, name, labels), expected, "{name} {labels:?}");
    }

    let web = http_service("web", &["10.96.0.10", "fd00:96::10"]).external_ips(&["198.51.100.10"]);
    let hosts = [&world.lab.pod1, &world.lab.pod2];
    world.manifests.write("web.yaml", format!("{web}{}", http_slices("web", &hosts)))?;
    let one = wait_for_services(&agent, 1)?;
    for (name, labels, expected) in [
        ("shunt_endpoint_slices", &[][..], 2.0),
        ("shunt_frontends", &[V4], 2.0),
        ("shunt_frontends", &[V6], 1.0),
        ("shunt_elements", &[V4, ("map", "service-ips")], 2.0),
        ("shunt_elements", &[V4, ("map", "endpoints")], 4.0),
        ("shunt_elements", &[V6, ("map", "endpoints")], 2.0),
        ("shunt_elements", &[V4, ("map", "masquerade-services")], 1.0),
        ("shunt_elements", &[V4, ("map", "cluster-ips")], 1.0),
        ("shunt_elements", &[V6, ("map", "external-ips")], 0.0),
        ("kubeproxy_sync_proxy_rules_service_changes_total", &[], 1.0),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", &[], 0.0),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", &[], 2.0),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[], 0.0),
        ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", &[V4], 0.0),
    ] {
        assert_eq!(value(&one, name, labels), expected, "{name} {labels:?}");
    }
    let commits = value(&one, "shunt_commits_total", &[]);
    assert!(commits > value(&empty, "shunt_commits_total", &[]));
    for histogram in ["shunt_commit_bytes", "shunt_commit_duration_seconds"] {
        assert_eq!(value(&one, &format!("{histogram}_count"), &[]), commits);
        assert!(value(&one, &format!("{histogram}_sum"), &[]) > 0.0);
    }
    assert!(value(&one, "shunt_event_to_kernel_seconds_count", &[]) >= 2.0);
    // The start planned everything, this change only one Service.
    for (scraped, kind) in [(&empty, "full"), (&one, "partial")] {
        let name = format!("kubeproxy_sync_{kind}_proxy_rules_duration_seconds_count");
        assert!(value(scraped, &name, &[V4]) >= 1.0, "{kind}");
    }
    for family in [V4, V6] {
        let stamp = |what| {
            value(&one, &format!("kubeproxy_sync_proxy_rules_last_{what}_seconds"), &[family])
        };
        assert!(stamp("queued_timestamp") <= stamp("timestamp"));
        assert!(stamp("timestamp") > 1_600_000_000.0);
    }

    world.manifests.remove("web.yaml")?;
    let none = wait_for_services(&agent, 0)?;
    for (name, labels) in [
        ("shunt_endpoint_slices", &[][..]),
        ("shunt_frontends", &[V4]),
        ("shunt_frontends", &[V6]),
        ("shunt_elements", &[V4, ("map", "endpoints")]),
        ("shunt_elements", &[V4, ("map", "cluster-ips")]),
    ] {
        assert_eq!(value(&none, name, labels), 0.0, "{name} {labels:?}");
    }
    agent.stop()
}

/// As kube-proxy counts: service ports with a policy that leaves them without endpoints here.
#[test]
fn services_without_local_endpoints_are_counted() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().start()?;
    let local = |name: &str, octet: u8, policy: &str| {
        let web = Service::new(name)
            .cluster_ips(&[&format!("10.96.0.{octet}")])
            .node_port("http", Protocol::Tcp, 80, 30_000 + u16::from(octet))
            .spec(policy);
        web.to_string()
    };
    let (internal, external) = ("internalTrafficPolicy: Local", "externalTrafficPolicy: Local");
    let remote = [&world.lab.pod3];
    let here = [&world.lab.pod1];
    let all = [
        local("a", 1, internal) + &http_slices("a", &remote),
        local("b", 2, external) + &http_slices("b", &remote),
        local("c", 3, external) + &http_slices("c", &remote),
        local("d", 4, external) + &http_slices("d", &here),
        // Without any endpoint, it is not the policy that is to blame.
        local("e", 5, internal) + &http_slices("e", &[]),
    ];
    world.manifests.write("all.yaml", all.concat())?;
    let scraped = wait_for_services(&agent, 5)?;
    let count = |scraped: &Exposition, policy, family| {
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        value(scraped, name, &[family, ("traffic_policy", policy)])
    };
    assert_eq!(count(&scraped, "internal", V4), 1.0);
    assert_eq!(count(&scraped, "external", V4), 2.0);
    assert_eq!(count(&scraped, "external", V6), 0.0);
    let without = |scraped: &Exposition, family| {
        value(scraped, "shunt_services_without_endpoints", &[family])
    };
    assert_eq!((without(&scraped, V4), without(&scraped, V6)), (1.0, 0.0));

    world.manifests.write("all.yaml", all[2..].concat())?;
    let scraped = wait_for_services(&agent, 3)?;
    assert_eq!(without(&scraped, V4), 1.0);
    world.manifests.write("all.yaml", all[2..4].concat())?;
    let scraped = wait_for_services(&agent, 2)?;
    assert_eq!(without(&scraped, V4), 0.0);
    assert_eq!(count(&scraped, "internal", V4), 0.0);
    assert_eq!(count(&scraped, "external", V4), 1.0);
    agent.stop()
}

/// The numbers are those of all frontends, in both families.
#[test]
fn new_connections_of_service_ports_are_counted() -> Result<()> {
    let world = World::with_web()?;
    let name = "shunt_service_new_connections_total";
    let agent = world.agent(CLUSTER_CIDR)?.arg("--service-metrics=counters").start()?;
    // A reading counts for a second, so that a scrape may see older numbers.
    let wait_for = |are_so: fn(Option<f64>, Option<f64>) -> bool| {
        agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
            let scraped = Exposition::parse(&answer.body).ok()?;
            let [tcp, udp] = [("tcp", "TCP"), ("udp", "UDP")].map(|(port, protocol)| {
                let of_web = [("namespace", "default"), ("service", "web")];
                scraped.value(name, &[of_web[0], ("port", port), ("protocol", protocol), of_web[1]])
            });
            are_so(tcp, udp).then_some(())
        })
    };
    wait_for(|tcp, udp| (tcp, udp) == (Some(0.0), Some(0.0)))?;
    let client = world.lab.from(&world.lab.client);
    let patience = std::time::Duration::from_secs(5);
    for (times, to) in [(1, "10.96.0.10:80"), (2, "[fd00:96::10]:80"), (4, "198.51.100.10:80")] {
        client.tcp(to).tally(times, patience)?;
        client.udp(to).tally(times * 10, patience)?;
    }
    wait_for(|tcp, udp| (tcp, udp) == (Some(7.0), Some(70.0)))?;
    // Without endpoints they are refused, and count.
    world.manifests.write("web.yaml", manifest(&web(), "web", &[]))?;
    client.tcp("10.96.0.10:80").times(1).eventually().refused();
    wait_for(|tcp, _| tcp > Some(7.0))?;
    world.manifests.remove("web.yaml")?;
    wait_for(|tcp, udp| (tcp, udp) == (None, None))?;
    assert_eq!(value(&scrape(&agent)?, "shunt_service_metrics_omitted", &[]), 0.0);
    agent.stop()?;

    let agent = world.plain_agent().start()?;
    assert!(!agent.http_get(METRICS_PORT, "/metrics")?.body.contains(name));
    agent.stop()
}

#[test]
fn conflicts_and_searches_for_stale_flows_are_counted() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().start()?;
    let dns = |name: &str| {
        let service =
            Service::new(name).cluster_ips(&["10.96.0.53"]).port("dns", Protocol::Udp, 53);
        let slice = EndpointSlice::v4(name).port("dns", Protocol::Udp, 53);
        format!("{service}{}", slice.hosts(&[&world.lab.pod1]))
    };
    world.manifests.write("a.yaml", dns("a"))?;
    world.manifests.write("b.yaml", dns("b"))?;
    let scraped = wait_for_services(&agent, 2)?;
    assert_eq!(value(&scraped, "shunt_frontend_conflicts", &[]), 1.0);
    let swept = agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        let name = "kubeproxy_conntrack_reconciler_sync_duration_seconds_count";
        (scraped.value(name, &[V4])? > 0.0).then_some(scraped)
    })?;
    assert_eq!(value(&swept, "kubeproxy_conntrack_reconciler_deleted_entries_total", &[V4]), 0.0);
    world.manifests.remove("a.yaml")?;
    let scraped = wait_for_services(&agent, 1)?;
    assert_eq!(value(&scraped, "shunt_frontend_conflicts", &[]), 0.0);
    agent.stop()
}

#[test]
fn repairs_are_counted() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().arg("--own-tables=false").start()?;
    world.manifests.write("web.yaml", http_service("web", &["10.96.0.10", "fd00:96::10"]))?;
    wait_for_services(&agent, 1)?;
    world.lab.node.nft("flush set ip shunt cluster-ips")?;
    agent.wait_for_answer(METRICS_PORT, "/metrics", |answer| {
        let scraped = Exposition::parse(&answer.body).ok()?;
        (scraped.value("shunt_drift_repairs_total", &[])? > 0.0).then_some(())
    })?;
    let repaired = wait_for_services(&agent, 1)?;
    assert_eq!(value(&repaired, "shunt_elements", &[V4, ("map", "cluster-ips")]), 1.0);
    agent.stop()
}

#[test]
fn the_other_pages_of_the_metrics_server() -> Result<()> {
    let world = World::empty()?;
    let agent = world.plain_agent().config("nftables: {syncPeriod: 90s}\n")?.start()?;
    assert_eq!(agent.http_get(METRICS_PORT, "/healthz")?.body, "ok");
    let configz = agent.http_get(METRICS_PORT, "/configz")?;
    assert!(configz.headers.contains("Content-Type: application/json"), "{configz:?}");
    let configz: serde_json::Value = serde_json::from_str(&configz.body)?;
    let shown = &configz["kubeproxy.config.k8s.io"];
    for (field, value) in [
        ("/apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
        ("/kind", "KubeProxyConfiguration"),
        ("/mode", "nftables"),
        ("/metricsBindAddress", "127.0.0.1:10249"),
        ("/nftables/syncPeriod", "1m30s"),
        ("/hostnameOverride", &world.lab.node.name),
    ] {
        let found = shown.pointer(field).and_then(serde_json::Value::as_str);
        assert_eq!(found, Some(value), "{field} in {configz}");
    }
    assert_eq!(agent.http_get(METRICS_PORT, "/proxyMode")?.body, "nftables");
    let slis = Exposition::parse(&agent.http_get(METRICS_PORT, "/metrics/slis")?.body)?;
    let ping = [("name", "ping"), ("type", "healthz")];
    assert_eq!(slis.value("kubernetes_healthcheck", &ping), Some(1.0));
    agent.stop()
}
