//! Connections and the answers to their requests.

use std::io;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use crate::object::{Key, Kind};

use super::body::{AnyBody, Broken, stream, whole};
use super::encoding::Encoding;
use super::list::list;
use super::misbehaviour::Answer;
use super::request::{Request, Verb};
use super::shared::Shared;
use super::status::Refusal;
use super::watch::Watch;

/// Takes connections for ever.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    loop {
        let (connection, _) = listener.accept().await?;
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut epoch = shared.epoch.subscribe();
            tokio::select! {
                // Whatever went wrong is the client's to report.
                _ = converse(connection, &shared) => {}
                _ = epoch.changed() => {}
            }
        });
    }
}

async fn converse(connection: TcpStream, shared: &Arc<Shared>) -> anyhow::Result<()> {
    connection.set_nodelay(true)?;
    match shared.tls() {
        None => serve(connection, shared, false).await,
        Some(tls) => {
            let connection = tls.accept(connection).await?;
            let certificate = connection.get_ref().1.peer_certificates().is_some();
            serve(connection, shared, certificate).await
        }
    }
}

async fn serve(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: &Arc<Shared>,
    certificate: bool,
) -> anyhow::Result<()> {
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let shared = Arc::clone(shared);
        async move { respond(request, &shared, certificate).await }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    server
        .serve_connection(TokioIo::new(connection), service)
        .await
        .map_err(anyhow::Error::from_boxed)
}

async fn respond(
    incoming: hyper::Request<Incoming>,
    shared: &Arc<Shared>,
    certificate: bool,
) -> Result<Response<AnyBody>, Broken> {
    let request = Request::new(&incoming, certificate);
    let content = incoming.into_body().collect().await.map_err(|_| Broken)?.to_bytes();
    let fault = shared.faults().answer(&request);
    // A fault may never come to an end; otherwise a watch shall be open when it is recorded.
    let is_faulty = fault.is_some();
    if is_faulty {
        shared.record(request.clone());
    }
    let encoding = Encoding::negotiate(&request.accept);
    let kind = request.kind;
    let mut limit = None;
    match fault {
        None => {}
        Some(Answer::Status(code)) => return Ok(refuse(&Refusal::of(code), encoding)),
        Some(Answer::RetryAfter(code, seconds)) => {
            let mut response = refuse(&Refusal::of(code), encoding);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            return Ok(response);
        }
        Some(Answer::Body(body)) => {
            return Ok(response(StatusCode::OK, Encoding::Json.content_type(false), whole(body)));
        }
        Some(Answer::Silence) => return std::future::pending().await,
        Some(Answer::CutAfter(bytes)) => limit = Some(bytes),
    }
    let answer = answer(&request, &content, shared, encoding, limit);
    if !is_faulty {
        shared.record(request);
    }
    match answer {
        Ok(Content::Value(code, value)) => {
            // Without a kind it is no object of the API.
            let encoding = kind.map_or(Encoding::Json, |_| encoding);
            let bytes = encoding.body(kind, &value);
            let body = match limit {
                None => whole(bytes),
                Some(_) => {
                    let (mut sender, body) = stream(limit);
                    tokio::spawn(async move { sender.send(bytes).await });
                    body
                }
            };
            Ok(response(code, encoding.content_type(false), body))
        }
        Ok(Content::Stream(body)) => {
            Ok(response(StatusCode::OK, encoding.content_type(true), body))
        }
        Err(refusal) => Ok(refuse(&refusal, encoding)),
    }
}

enum Content {
    Value(StatusCode, Value),
    Stream(AnyBody),
}

/// The right answer.
fn answer(
    request: &Request,
    content: &[u8],
    shared: &Arc<Shared>,
    encoding: Encoding,
    limit: Option<usize>,
) -> Result<Content, Refusal> {
    if !request.certificate && request.token.as_ref() != Some(&*shared.token()) {
        return Err(Refusal::of(401));
    }
    let ok = |value| Ok(Content::Value(StatusCode::OK, value));
    let kind = match request.kind {
        None if request.path == "/version" => return ok(version()),
        kind => kind.ok_or(Refusal::of(404))?,
    };
    let bad = |message: String| Refusal::new(400, message);
    match request.verb {
        Verb::List | Verb::Watch => {
            if request.verb == Verb::List {
                return ok(list(&shared.store(), kind, request)?);
            }
            let watch = Watch::new(kind, encoding, request, shared);
            let (sender, body) = stream(limit);
            let shared = Arc::clone(shared);
            tokio::spawn(async move { watch.run(&shared, sender).await });
            Ok(Content::Stream(body))
        }
        // Whether all its fields are valid, the real server says.
        Verb::Create if kind == Kind::Event => {
            let event: Value = serde_json::from_slice(content).unwrap_or_default();
            let key = Key::of(&event).map_err(|error| bad(error.to_string()))?;
            if shared.store().get(&key).is_some() {
                return Err(Refusal::of(409));
            }
            let event = shared.write(|store| store.put(event));
            let event = event.map_err(|error| bad(error.to_string()))?;
            Ok(Content::Value(StatusCode::CREATED, (*event).clone()))
        }
        _ => Err(Refusal::of(405)),
    }
}

fn version() -> Value {
    json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
}

fn refuse(refusal: &Refusal, encoding: Encoding) -> Response<AnyBody> {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = whole(encoding.body(None, &refusal.object()));
    response(code, encoding.content_type(false), body)
}

fn response(code: StatusCode, content_type: &'static str, body: AnyBody) -> Response<AnyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
