//! `/healthz` for load balancers, `/livez` for probes, and `healthCheckNodePort`, by which load balancers
//! find the nodes with endpoints of a Service, as kube-proxy answers them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use serde::Serialize;
use shunt_core::model::{Family, ObjectName};

use super::protocol::{Answer, json};
use crate::serve::status::Time;

/// The health of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The time of the last successful sync; `None` before the first commit.
    pub last_updated: Option<Time>,
    /// The age of the oldest change that the kernel does not have.
    pub waiting: Option<Duration>,
    /// The age of the oldest change whose stale flows connection tracking may still have.
    pub unswept: Option<Duration>,
    /// The maximum age of both: twice the sync period.
    pub patience: Duration,
    /// False if load balancers should send no new traffic to this node.
    pub node_eligible: bool,
    /// The families of the node. A transaction covers all of them.
    pub families: Vec<Family>,
}

/// Returns the current health.
pub type HealthSource = Arc<dyn Fn() -> Health + Send + Sync>;

impl Health {
    /// Returns true if no change is overdue. That holds before the first change, too.
    #[must_use]
    pub fn is_live(&self) -> bool {
        [self.waiting, self.unswept].into_iter().flatten().all(|age| age < self.patience)
    }

    /// Returns true if no change is overdue and the first commit is done.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_live() && self.last_updated.is_some()
    }

    pub(super) fn healthz(&self, now: Time) -> Answer {
        self.answer(self.is_ready(), Some(self.node_eligible), now)
    }

    pub(super) fn livez(&self, now: Time) -> Answer {
        self.answer(self.is_live(), None, now)
    }

    fn answer(&self, healthy: bool, node_eligible: Option<bool>, now: Time) -> Answer {
        let good = healthy && node_eligible.unwrap_or(true);
        // As Go writes them: with as many digits of a second as needed.
        let updated = self.last_updated.map(|time| time.to_string());
        let families = self.families.iter().filter_map(|family| {
            let last_updated = updated.clone()?;
            Some((family.to_string(), FamilyHealth { last_updated, healthy }))
        });
        let body = ProxyHealth {
            // kube-proxy returns the current time while nothing waits.
            last_updated: match &updated {
                _ if good => now.to_string(),
                Some(updated) => updated.clone(),
                None => NEVER.to_owned(),
            },
            current_time: now.to_string(),
            node_eligible,
            healthy,
            status: families.collect(),
        };
        json(good, serde_json::to_string(&body).unwrap_or_default())
    }
}

/// The zero time of Go.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// kube-proxy's `ProxyHealth`; the order of the fields is that of its JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealth {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyHealth>,
}

/// kube-proxy's `ProxierHealth`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyHealth {
    last_updated: String,
    healthy: bool,
}

/// The health of a Service at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceHealth {
    /// The Service, by namespace and name.
    pub service: ObjectName,
    /// The number of ready endpoints on this node.
    pub local_endpoints: usize,
}

/// The addresses to listen on, with the answer at each.
pub type ServiceHealths = BTreeMap<SocketAddr, ServiceHealth>;

impl ServiceHealth {
    /// Returns the answer to any path, byte for byte that of kube-proxy.
    pub(super) fn answer(&self, agent_healthy: bool) -> Answer {
        let ServiceHealth { service, local_endpoints } = self;
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\
             \"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {agent_healthy}\n}}",
            serde_json::Value::from(&*service.namespace),
            serde_json::Value::from(&*service.name),
        );
        let mut answer = json(agent_healthy && *local_endpoints > 0, body);
        let weight = HeaderValue::from(*local_endpoints);
        answer.headers_mut().insert("x-load-balancing-endpoint-weight", weight);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Health {
        Health {
            last_updated: Some(Time::constant(990, 500_000_000)),
            waiting: None,
            unswept: None,
            patience: Duration::from_secs(60),
            node_eligible: true,
            families: Family::ALL.to_vec(),
        }
    }

    #[test]
    fn healthz_minds_the_node_and_livez_does_not() {
        let waiting = |seconds| Some(Duration::from_secs(seconds));
        for (health, healthz, livez) in [
            (fresh(), 200, 200),
            // Nothing is programmed yet: traffic should go elsewhere, but a restart would not help.
            (Health { last_updated: None, ..fresh() }, 503, 200),
            (Health { last_updated: None, waiting: waiting(60), ..fresh() }, 503, 503),
            (Health { waiting: waiting(59), ..fresh() }, 200, 200),
            (Health { waiting: waiting(60), ..fresh() }, 503, 503),
            (Health { unswept: waiting(59), ..fresh() }, 200, 200),
            (Health { unswept: waiting(60), ..fresh() }, 503, 503),
            (Health { node_eligible: false, ..fresh() }, 503, 200),
        ] {
            let now = Time::now();
            let status = (health.healthz(now).status(), health.livez(now).status());
            assert_eq!((status.0.as_u16(), status.1.as_u16()), (healthz, livez), "{health:?}");
        }
    }

    #[test]
    fn the_answers_are_kube_proxys_to_the_byte() {
        let now = Time::constant(1_000, 120);
        let behind = Health { waiting: Some(Duration::from_secs(90)), ..fresh() };
        let v4 = Health { families: vec![Family::V4], ..fresh() };
        for (answer, expected) in [
            (
                fresh().healthz(now),
                r#"{"lastUpdated":"1970-01-01T00:16:40.00000012Z","currentTime":"1970-01-01T00:16:40.00000012Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"1970-01-01T00:16:30.5Z","healthy":true},"IPv6":{"lastUpdated":"1970-01-01T00:16:30.5Z","healthy":true}}}"#,
            ),
            (
                behind.livez(now),
                r#"{"lastUpdated":"1970-01-01T00:16:30.5Z","currentTime":"1970-01-01T00:16:40.00000012Z","healthy":false,"status":{"IPv4":{"lastUpdated":"1970-01-01T00:16:30.5Z","healthy":false},"IPv6":{"lastUpdated":"1970-01-01T00:16:30.5Z","healthy":false}}}"#,
            ),
            (
                Health { node_eligible: false, ..v4 }.healthz(now),
                r#"{"lastUpdated":"1970-01-01T00:16:30.5Z","currentTime":"1970-01-01T00:16:40.00000012Z","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"1970-01-01T00:16:30.5Z","healthy":true}}}"#,
            ),
            (
                Health { last_updated: None, ..fresh() }.healthz(now),
                r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"1970-01-01T00:16:40.00000012Z","nodeEligible":true,"healthy":false}"#,
            ),
        ] {
            assert_eq!(answer.body(), expected);
        }
    }
}
