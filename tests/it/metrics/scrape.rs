//! Values that move with what happens.

use anyhow::Result;
use shunt_testbed::{Exposition, METRICS_PORT};

use crate::world::World;

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
        ("/nftables/syncPeriod", "90s"),
        ("/hostnameOverride", &world.lab.node.name),
    ] {
        let found = shown.pointer(field).and_then(serde_json::Value::as_str);
        assert_eq!(found, Some(value), "{field} in {configz}");
    }
    assert_eq!(agent.http_get(METRICS_PORT, "/proxyMode")?.body, "nftables");
    // Which has metrics of its own, as the health checks of other servers.
    let slis = Exposition::parse(&agent.http_get(METRICS_PORT, "/metrics/slis")?.body)?;
    let ping = [("name", "ping"), ("type", "healthz")];
    assert_eq!(slis.value("kubernetes_healthcheck", &ping), Some(1.0));
    agent.stop()
}
