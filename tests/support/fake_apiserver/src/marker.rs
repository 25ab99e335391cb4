//! A Service that shows how far a proxy has come.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use shunt_testbed::{Origin, eventually};

const PODS: [(&str, &str, &str); 2] =
    [("pod-1", "10.244.0.11", "fd00:244::11"), ("pod-2", "10.244.0.12", "fd00:244::12")];

/// A Service and its slices, changed now, come by the same ways as all that was changed before them.
#[derive(Debug, Default)]
pub struct Marker(Cell<usize>);

impl Marker {
    /// Its name, the last one of all.
    pub const NAME: &str = "zz-marker";

    /// Returns its objects with another port and endpoint than before. Hints show the zone.
    pub fn next(&self, zone: Option<&str>) -> [Value; 3] {
        let mark = self.0.get() + 1;
        self.0.set(mark);
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": Self::NAME, "namespace": "default"},
            "spec": {
                "clusterIP": "10.96.255.1", "clusterIPs": ["10.96.255.1", "fd00:96::ff01"],
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{"name": "a", "protocol": "TCP", "port": 1000 + mark}],
            },
        });
        let (here, elsewhere) = (PODS[mark % 2], PODS[(mark + 1) % 2]);
        let slice = |family: &str, here: &str, elsewhere: &str| {
            let endpoint = |ip: &str, zone: Option<&str>| {
                let hints = zone.map_or(json!({}), |zone| json!({"forZones": [{"name": zone}]}));
                json!({"addresses": [ip], "conditions": {"ready": true}, "hints": hints})
            };
            let mut endpoints = vec![endpoint(here, zone)];
            endpoints.extend(zone.map(|_| endpoint(elsewhere, Some("elsewhere"))));
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{}", Self::NAME, family.to_lowercase()),
                    "namespace": "default",
                    "labels": {"kubernetes.io/service-name": Self::NAME},
                },
                "addressType": family,
                "ports": [{"name": "a", "protocol": "TCP", "port": 8080}],
                "endpoints": endpoints,
            })
        };
        [service, slice("IPv4", here.1, elsewhere.1), slice("IPv6", here.2, elsewhere.2)]
    }

    /// Waits until packets from there reach the endpoint that it has now, and no other.
    pub fn wait(&self, from: Origin<'_>) -> Result<()> {
        let mark = self.0.get();
        let (expected, ..) = PODS[mark % 2];
        for ip in ["10.96.255.1", "[fd00:96::ff01]"] {
            let to = format!("{ip}:{}", 1000 + mark);
            let probe = from.tcp(&to);
            eventually(format_args!("the proxy does not follow: {to} is not {expected}"), || {
                // Enough that a second endpoint would show.
                let tally = probe.tally(16, Duration::from_millis(500))?;
                let own = |server: &&str| server.split(':').next() == Some(expected);
                let is_so = tally.lost() == 0 && tally.by_server().keys().all(own);
                Ok(is_so.then_some(()))
            })?;
        }
        Ok(())
    }
}
