//! The HTTP servers for health, metrics, and the `healthCheckNodePort`s of Services.
//!
//! A port in use is retried. A changed address in the configuration moves a server.

mod connections;
mod health;
mod protocol;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, yield_now};

use self::connections::Connections;
use self::protocol::{Answer, JSON, PLAIN_TEXT, SharedPage, converse, ok};
use super::listener::{Happened, PortListener};
use super::metrics::Metrics;
use super::status::Time;
use super::unbound_ports::{Server, UnboundPort, UnboundPorts};
use crate::config::{Config, Loaded};

pub use health::{Health, HealthSource, ServiceHealth, ServiceHealths};

/// The group of the configuration, which `/configz` names.
const GROUP: &str = "kubeproxy.config.k8s.io";
/// The content type of metrics.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the servers answer from.
pub struct Http {
    loaded: watch::Receiver<Loaded>,
    health: HealthSource,
    services: watch::Receiver<ServiceHealths>,
    metrics: Metrics,
    page: SharedPage,
    connections: Connections,
    unbound: UnboundPorts,
}

/// What listens where.
type Listening = (Server, SocketAddr);

impl Http {
    /// Makes the servers. They start nothing yet.
    #[must_use]
    pub fn new(
        loaded: watch::Receiver<Loaded>,
        health: HealthSource,
        services: watch::Receiver<ServiceHealths>,
        metrics: Metrics,
        unbound: UnboundPorts,
    ) -> Http {
        let (page, connections) = (SharedPage::default(), Connections::default());
        Http { loaded, health, services, metrics, page, connections, unbound }
    }

    /// Serves until a port cannot be bound and `bindAddressHardFail` is set. Returns that error.
    pub async fn serve(self) -> anyhow::Error {
        let (mut loaded, mut services) = (self.loaded.clone(), self.services.clone());
        let (http, (failed, mut failure)) = (Arc::new(self), mpsc::channel(1));
        let mut listeners: HashMap<Listening, JoinHandle<()>> = HashMap::new();
        loop {
            let wanted = places(&loaded.borrow_and_update().config, &services.borrow_and_update());
            for (_, task) in listeners.extract_if(|place, _| !wanted.contains(place)) {
                task.abort();
                // Its address is free then.
                let _ = task.await;
            }
            for place in wanted {
                listeners.entry(place).or_insert_with(|| {
                    let (http, failed) = (http.clone(), failed.clone());
                    tokio::spawn(async move {
                        let _ = failed.send(http.listen(place).await).await;
                    })
                });
            }
            tokio::select! {
                Ok(()) = loaded.changed() => {}
                Ok(()) = services.changed() => {}
                Some(error) = failure.recv() => return error,
            }
        }
    }

    /// Listens at a place until it cannot.
    async fn listen(self: Arc<Http>, (server, address): Listening) -> anyhow::Error {
        let is_service = server == Server::SERVICE_HEALTH;
        let mut listener = PortListener::new(address, is_service);
        let mut _unbound = None;
        loop {
            match listener.next().await {
                Happened::Bound => {
                    _unbound = None;
                    if !is_service {
                        tracing::info!(%address, "serving {}", server.purpose);
                    }
                }
                Happened::Unbound(error)
                    if !is_service && self.loaded.borrow().config.bind_address_hard_fail =>
                {
                    return anyhow!(
                        "{}; free the port, choose another address, or set bindAddressHardFail to \
                         false for retries",
                        UnboundPort::new(server, None, address, &error)
                    );
                }
                Happened::Unbound(error) => {
                    let services = self.services.borrow();
                    let service = services.get(&address).filter(|_| is_service);
                    let service = service.map(|health| &health.service);
                    _unbound = Some(self.unbound.add(server, service, address, &error));
                }
                Happened::Accepted(stream) => {
                    let (slot, connections) = (self.connections.enter(), self.connections.clone());
                    let http = self.clone();
                    tokio::spawn(converse(stream, slot, connections, move |path| {
                        let http = http.clone();
                        async move { http.answer(server, address, &path).await }
                    }));
                    // A connection that made room frees its file descriptor.
                    yield_now().await;
                }
            }
        }
    }

    /// Returns the answer of a server to a path, `None` if it has none.
    async fn answer(&self, server: Server, address: SocketAddr, path: &str) -> Option<Answer> {
        let metrics = &self.metrics;
        let counted = |answer: Answer, counter| {
            metrics.add(counter, &[("code", answer.status().as_str())], 1.0);
            answer
        };
        let (health, now) = (&self.health, Time::now());
        Some(match (server, path) {
            (Server::HEALTH, "/healthz") => {
                counted(health().healthz(now), "kubeproxy_proxy_healthz_total")
            }
            (Server::HEALTH, "/livez") => {
                counted(health().livez(now), "kubeproxy_proxy_livez_total")
            }
            (Server::SERVICE_HEALTH, _) => {
                let is_ready = health().is_ready();
                self.services.borrow().get(&address)?.answer(is_ready)
            }
            (Server::METRICS, "/metrics") => {
                let metrics = metrics.clone();
                return self.page.get(move || ok(METRICS, metrics.exposition())).await;
            }
            (Server::METRICS, "/metrics/slis") => ok(METRICS, metrics.slis()),
            (Server::METRICS, "/healthz" | "/healthz/ping") => {
                metrics.pinged();
                ok(PLAIN_TEXT, "ok")
            }
            (Server::METRICS, "/configz") => {
                ok(JSON, json!({ GROUP: self.loaded.borrow().full }).to_string())
            }
            (Server::METRICS, "/proxyMode") => ok(PLAIN_TEXT, "nftables"),
            _ => return None,
        })
    }
}

/// Returns where to listen.
fn places(config: &Config, services: &ServiceHealths) -> BTreeSet<Listening> {
    let health = config.healthz_bind_address.map(|address| (Server::HEALTH, address));
    let metrics = config.metrics_bind_address.map(|address| (Server::METRICS, address));
    let services = services.keys().map(|address| (Server::SERVICE_HEALTH, *address));
    health.into_iter().chain(metrics).chain(services).collect()
}
