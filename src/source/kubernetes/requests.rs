//! Observes the requests to the server, for metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::http::{Request, Response};
use hyper::{Method, StatusCode};
use kube::client::Body;
use tower::util::BoxService;
use tower::{Service, ServiceExt, service_fn};

/// A finished request: its answer has begun, or it has failed.
#[derive(Debug)]
pub struct ObservedRequest<'a> {
    /// The HTTP method.
    pub method: &'a Method,
    /// The server, as `host:port` where the URL has a port.
    pub host: &'a str,
    /// The status of the answer; none if the request failed.
    pub status: Option<StatusCode>,
    /// The latency; none for a watch, whose answer begins at once and lasts for minutes.
    pub took: Option<Duration>,
}

/// A callback for each request.
pub type RequestObserver = Arc<dyn Fn(&ObservedRequest<'_>) + Send + Sync>;

/// Makes a service call the observer for each request to this host.
pub(super) fn observed<S, B>(
    service: S,
    host: &str,
    observer: &RequestObserver,
) -> BoxService<Request<Body>, Response<B>, S::Error>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send,
{
    let (host, observer): (Arc<str>, _) = (host.into(), observer.clone());
    BoxService::new(service_fn(move |request: Request<Body>| {
        let method = request.method().clone();
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|parameter| parameter.starts_with("watch="));
        let (host, observer) = (host.clone(), observer.clone());
        let started = Instant::now();
        let answer = service.clone().oneshot(request);
        async move {
            let answer = answer.await;
            observer(&ObservedRequest {
                method: &method,
                host: &host,
                status: answer.as_ref().ok().map(Response::status),
                took: (!is_watch).then(|| started.elapsed()),
            });
            answer
        }
    }))
}
