//! `/healthz` for load balancers and `/livez` for probes, as kube-proxy answers them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::http::{self, Answer, Handler, LIMITS};

/// The pause before a port that cannot be bound is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// How the agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// When the kernel was last known to hold what is planned; `None` before the first commit.
    pub last_updated: Option<SystemTime>,
    /// Since when a change has been waiting to be committed.
    pub queued_since: Option<SystemTime>,
    /// How long a change may wait: twice the sync period.
    pub patience: Duration,
    /// False if load balancers should not send new traffic to this node.
    pub node_eligible: bool,
}

impl Health {
    /// True if the dataplane is up to date, or not behind for too long.
    #[must_use]
    pub fn is_healthy(&self, now: SystemTime) -> bool {
        let waiting = self.queued_since.and_then(|since| now.duration_since(since).ok());
        self.last_updated.is_some() && waiting.is_none_or(|waiting| waiting <= self.patience)
    }

    /// The answer for a path; `None` for a path that there is not.
    fn answer(&self, path: &str, now: SystemTime) -> Option<Answer> {
        let healthy = self.is_healthy(now);
        let (good, eligible) = match path {
            "/healthz" => (healthy && self.node_eligible, Some(self.node_eligible)),
            "/livez" => (healthy, None),
            _ => return None,
        };
        let time =
            |time: SystemTime| jiff::Timestamp::try_from(time).unwrap_or_default().to_string();
        let updated = self.last_updated.map(time);
        // kube-proxy says "now" while all is well, since nothing is waiting.
        let last_updated = if good { time(now) } else { updated.clone().unwrap_or_default() };
        let mut body = serde_json::json!({
            "lastUpdated": last_updated,
            "currentTime": time(now),
            "healthy": healthy,
        });
        if let Some(eligible) = eligible {
            body["nodeEligible"] = eligible.into();
        }
        body["status"] = match updated {
            Some(updated) => {
                let family = serde_json::json!({ "lastUpdated": updated, "healthy": healthy });
                serde_json::json!({ "IPv4": family, "IPv6": family })
            }
            None => serde_json::json!({}),
        };
        Some(Answer::new(good, body.to_string()))
    }
}

/// Serves for ever. A port that cannot be bound is reported once and tried again.
pub async fn serve_health(address: SocketAddr, health: watch::Receiver<Health>) {
    let mut reported = false;
    loop {
        match http::listen(address, false) {
            Ok(listener) => {
                tracing::info!(%address, "serving /healthz and /livez");
                return http::accept(&listener, handler(health), LIMITS).await;
            }
            Err(error) if !reported => {
                tracing::error!(
                    %address, %error,
                    "cannot serve health checks (healthzBindAddress): trying again every {} s; \
                     the rules are kept up to date meanwhile",
                    RETRY.as_secs(),
                );
                reported = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn handler(health: watch::Receiver<Health>) -> Handler {
    Arc::new(move |path| health.borrow().answer(path, SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::http::{Limits, get};
    use super::*;

    #[tokio::test]
    async fn the_state_is_served_and_slow_clients_do_not_stop_it() {
        let state = Health {
            last_updated: None,
            queued_since: None,
            patience: Duration::from_secs(60),
            node_eligible: true,
        };
        let (sender, receiver) = watch::channel(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let limits = Limits { request: Duration::from_millis(200), connections: 2, ..LIMITS };
        tokio::spawn(async move {
            http::accept(&listener, handler(receiver), limits).await;
        });

        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 503 "));
        sender.send_modify(|health| health.last_updated = Some(SystemTime::now()));
        let answer = get(address, "/livez").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("Content-Type: application/json\r\n"), "{answer}");
        assert!(answer.contains("X-Content-Type-Options: nosniff\r\n"), "{answer}");
        assert!(get(address, "/other").await.starts_with("HTTP/1.1 404 "));

        let mut slow = Vec::new();
        for _ in 0..20 {
            let mut stream = TcpStream::connect(address).await.expect("the kernel's queue");
            stream.write_all(b"GET /healthz HT").await.expect("room in the buffer");
            slow.push(stream);
        }
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn healthz_minds_the_node_and_livez_does_not() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let ago = |seconds| Some(now - Duration::from_secs(seconds));
        let fresh = Health {
            last_updated: ago(10),
            queued_since: None,
            patience: Duration::from_secs(60),
            node_eligible: true,
        };
        for (health, healthz, livez) in [
            (fresh.clone(), 200, 200),
            (Health { last_updated: None, ..fresh.clone() }, 503, 503),
            (Health { queued_since: ago(59), ..fresh.clone() }, 200, 200),
            (Health { queued_since: ago(61), ..fresh.clone() }, 503, 503),
            (Health { node_eligible: false, ..fresh }, 503, 200),
        ] {
            let status = |path| health.answer(path, now).expect("a path").status.as_u16();
            assert_eq!((status("/healthz"), status("/livez")), (healthz, livez), "{health:?}");
        }
        assert!(fresh.answer("/metrics", now).is_none());
        let body = fresh.answer("/healthz", now).expect("a path").body;
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["currentTime"], "1970-01-01T00:16:40Z");
        assert_eq!(body["status"]["IPv6"]["lastUpdated"], "1970-01-01T00:16:30Z");
        assert_eq!(body["nodeEligible"], true);
    }
}
