//! The names, types, labels and buckets that dashboards and alerts rely on.

use std::time::Duration;

use anyhow::Result;
use shunt::dataplane::{CommitStats, Snapshot};
use shunt::serve::metrics::{Metrics, ServiceConnections};
use shunt_core::model::{ChangeCounts, Family, Protocol};
use shunt_core::plan::{Set, Unserved};
use shunt_testbed::Exposition;

/// Where everything that can be counted has been counted once.
fn everything(families: &[Family]) -> Metrics {
    // One Service port, and 15 that are left out.
    let ports = vec![("shop/web:http".into(), Protocol::Tcp, 14)];
    let connections = ServiceConnections { ports, omitted: 15 };
    let read = Box::new(move || Some(connections.clone()));
    let metrics = Metrics::new(families, Some(read), || 0);
    let mut snapshot = Snapshot {
        frontends: [3, 4],
        unserved: Unserved {
            without_endpoints: [12, 13],
            no_local_internal: [8, 9],
            no_local_external: [10, 11],
        },
        ..Snapshot::default()
    };
    snapshot.elements[1][Set::ServiceIps as usize] = 6;
    let took = Duration::from_millis(3);
    metrics.changes_noticed(ChangeCounts { services: 1, slices: 2 });
    let stats = CommitStats { took, full: true, ..CommitStats::default() };
    metrics.sync_succeeded(&stats, &snapshot);
    metrics.sync_failed(&CommitStats { full: false, ..stats });
    metrics.changes_synced(ChangeCounts { services: 1, slices: 1 });
    metrics.add("shunt_watch_restarts_total", &[("resource", "services")], 1.0);
    metrics.set("shunt_kube_proxy_leftovers", &[("kind", "process")], 0.0);
    metrics.api_asked("POST", "10.0.0.1:6443", Some(201), Some(took));
    metrics.api_asked("GET", "10.0.0.1:6443", None, None);
    metrics.add("kubeproxy_proxy_healthz_total", &[("code", "200")], 1.0);
    metrics.network_programmed(Family::V6, took);
    metrics
}

#[test]
fn nothing_that_is_exported_changes_its_name() -> Result<()> {
    let metrics = everything(&Family::ALL);
    let scraped = Exposition::parse(&metrics.exposition())?;
    let expected = include_str!("../../fixtures/metrics.txt");
    assert_eq!(scraped.outline(), expected);
    Ok(())
}

#[test]
fn the_reference_has_all_of_them() {
    let reference = include_str!("../../../docs/metrics.md");
    for name in
        include_str!("../../fixtures/metrics.txt").lines().filter_map(|l| l.split(' ').next())
    {
        let counter =
            name.strip_suffix("_pending").map(|name| format!("`{name}_total`, `…_pending`"));
        let written = reference.contains(&format!("`{name}`"))
            || reference.contains(&format!("`{name}{{"))
            || counter.is_some_and(|counter| reference.contains(&counter));
        assert!(written, "docs/metrics.md does not know {name}");
    }
}

#[test]
fn values_are_those_that_were_counted() -> Result<()> {
    let metrics = everything(&Family::ALL);
    let text = metrics.exposition();
    let scraped = Exposition::parse(&text)?;
    for line in [
        r#"kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 2"#,
        r#"kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1"#,
        r#"kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1"#,
        r#"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv6"} 0"#,
        r#"kubeproxy_sync_proxy_rules_service_changes_total 1"#,
        r#"kubeproxy_sync_proxy_rules_service_changes_pending 0"#,
        r#"kubeproxy_sync_proxy_rules_endpoint_changes_total 2"#,
        r#"kubeproxy_sync_proxy_rules_endpoint_changes_pending 1"#,
        r#"kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 0"#,
        r#"kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"} 1"#,
        r#"kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy="external",ip_family="IPv6"} 11"#,
        r#"kubeproxy_proxy_healthz_total{code="200"} 1"#,
        r#"kubeproxy_proxy_livez_total{code="503"} 0"#,
        r#"shunt_elements{ip_family="IPv6",map="service-ips"} 6"#,
        r#"shunt_frontends{ip_family="IPv4"} 3"#,
        r#"shunt_service_new_connections_total{namespace="shop",service="web",port="http",protocol="TCP"} 14"#,
        r#"shunt_service_metrics_omitted 15"#,
        r#"shunt_services_without_endpoints{ip_family="IPv6"} 13"#,
        r#"shunt_watch_restarts_total{resource="services"} 1"#,
        r#"rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"} 1"#,
        r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="POST"} 1"#,
        r#"shunt_config_reloads_total{result="failure"} 0"#,
        r#"shunt_config_last_reload_successful 1"#,
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    let value = |name| scraped.value(name, &[]).unwrap_or_default();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs_f64();
    let age = now - value("process_start_time_seconds");
    // The kernel's idea of the time of its start is whole seconds.
    assert!((-1.0..3600.0).contains(&age), "{age}");
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    assert!(value("process_open_fds") >= 1.0);
    assert!(value("process_max_fds") >= value("process_open_fds"));
    Ok(())
}

/// As kube-proxy, which has no proxier for such a family.
#[test]
fn a_family_that_the_node_does_not_have_is_not_exported() -> Result<()> {
    let metrics = everything(&[Family::V4]);
    let text = metrics.exposition();
    Exposition::parse(&text)?;
    assert!(text.contains("IPv4") && !text.contains("IPv6"), "{text}");
    Ok(())
}
