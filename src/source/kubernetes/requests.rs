//! Observes the requests to the server, for metrics.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::http::{Request, Response};
use hyper::{Method, StatusCode};
use tower::{Layer, Service};

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

/// A layer of the client that calls the observer for each request.
#[derive(Clone)]
pub(super) struct ObserverLayer {
    pub(super) host: Arc<str>,
    pub(super) observer: RequestObserver,
}

impl<S> Layer<S> for ObserverLayer {
    type Service = Telling<S>;

    fn layer(&self, inner: S) -> Telling<S> {
        Telling { tell: self.clone(), inner }
    }
}

#[derive(Clone)]
pub(super) struct Telling<S> {
    tell: ObserverLayer,
    inner: S,
}

impl<S, A, B> Service<Request<A>> for Telling<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let method = request.method().clone();
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|parameter| parameter.starts_with("watch="));
        let ObserverLayer { host, observer } = self.tell.clone();
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            observer(&ObservedRequest {
                method: &method,
                host: &host,
                status: answer.as_ref().ok().map(Response::status),
                took: (!is_watch).then(|| started.elapsed()),
            });
            answer
        })
    }
}
