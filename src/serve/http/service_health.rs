//! The servers of `healthCheckNodePort`: load balancers ask which nodes have endpoints of a
//! Service.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::header::HeaderValue;
use shunt_core::model::ObjectName;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::HealthSource;
use super::connections::Connections;
use super::protocol::{self, Answer, Handler, json};
use crate::serve::unbound_ports::{Report, UnboundPort, UnboundPorts};

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
    fn answer(&self, agent_healthy: bool) -> Answer {
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

/// Keeps one listener per address of `wanted`, for ever. Calls `report` once for a port that cannot
/// be bound, retries it, and lists it in `unbound` meanwhile.
pub async fn serve_service_health(
    mut wanted: watch::Receiver<ServiceHealths>,
    health: HealthSource,
    unbound: UnboundPorts<UnboundPort>,
    connections: Connections,
    report: Report,
) {
    let mut listeners: HashMap<SocketAddr, JoinHandle<()>> = HashMap::new();
    loop {
        let addresses: Vec<SocketAddr> = wanted.borrow_and_update().keys().copied().collect();
        listeners.retain(|address, task| {
            let keep = addresses.contains(address);
            if !keep {
                task.abort();
            }
            keep
        });
        for address in addresses {
            listeners.entry(address).or_insert_with(|| {
                let (wanted, health) = (wanted.clone(), health.clone());
                let (unbound, connections) = (unbound.clone(), connections.clone());
                let report = report.clone();
                tokio::spawn(async move {
                    serve(address, wanted, health, unbound, connections, report).await;
                })
            });
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

async fn serve(
    address: SocketAddr,
    wanted: watch::Receiver<ServiceHealths>,
    health: HealthSource,
    unbound: UnboundPorts<UnboundPort>,
    connections: Connections,
    report: Report,
) {
    let seen = wanted.clone();
    let handler: Handler = Arc::new(move |_path| {
        let healthy = health().is_ready();
        seen.borrow().get(&address).map(|told| told.answer(healthy).into())
    });
    let taken = |error| {
        let listed = wanted.borrow().get(&address).map(|told| {
            report(&told.service, address, &error);
            let port = UnboundPort::new(&told.service, address, &error);
            unbound.add(address, ("shunt_unbound_ports", &[("server", "service-health")]), port)
        });
        Ok::<_, Infallible>(listed)
    };
    let never =
        protocol::keep_listening(address, true, "health checks", handler, &connections, taken);
    match never.await {}
}
