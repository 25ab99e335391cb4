//! A server that follows a script, and what the source makes of it. Time is tokio's paused clock: a
//! pause of minutes takes no time.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use hyper::{Request, Response};
use kube::Client;
use shunt_core::model::{self, Change, ChangeBatch};
use shunt_fake_apiserver::{Kind, protobuf};
use tokio::time::{Duration, Instant};
use tower::service_fn;

use crate::source::kubernetes::client::Connection;
use crate::source::kubernetes::{ApiSource, Incident};

/// What happens after the last line of an answer.
#[derive(Clone, Copy)]
enum Then {
    /// The body ends, as the server ends it.
    End,
    /// The connection breaks.
    Break,
    /// Nothing, for ever.
    Hang,
}

/// The answer to one request.
pub(super) struct Answer {
    status: u16,
    retry_after: Option<String>,
    text: String,
    /// The body in place of the text, whatever was asked for.
    protobuf: Option<Vec<u8>>,
    /// The number of bytes that come; none for all.
    cut: Option<usize>,
    then: Then,
}

impl Answer {
    fn new(status: u16, text: String, then: Then) -> Answer {
        Answer { status, retry_after: None, text, protobuf: None, cut: None, then }
    }

    /// A watch with these events, which then stays open.
    pub(super) fn watch(events: &[String]) -> Answer {
        Answer::new(200, lines(events), Then::Hang)
    }

    /// A whole list.
    pub(super) fn list(version: u32, items: &[String]) -> Answer {
        Answer::page(version, "", items)
    }

    /// A page of a list; `next` leads to the next one.
    fn page(version: u32, next: &str, items: &[String]) -> Answer {
        let items = items.join(",");
        let text = format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{items}]}}"#
        );
        Answer::new(200, text, Then::End)
    }

    /// HTTP 200 with this body, which is said to be protobuf and does not end.
    pub(super) fn protobuf(body: Vec<u8>) -> Answer {
        Answer { protobuf: Some(body), ..Answer::new(200, String::new(), Then::Hang) }
    }

    /// Returns the body in protobuf if it can be: garbage cannot.
    fn in_protobuf(&self, kind: Kind, is_watch: bool) -> Option<Vec<u8>> {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        if !is_watch || self.status != 200 {
            return Some(protobuf::body(kind, &parse(&self.text)?));
        }
        let mut frames = Vec::new();
        let (whole, part) = self.text.rsplit_once('\n').unwrap_or(("", &self.text));
        for line in whole.lines() {
            frames.extend(protobuf::frame(kind, &parse(line)?));
        }
        // Half a line becomes the half of a frame that never ends.
        frames.extend(part.bytes().take(3).map(|_| 0));
        Some(frames)
    }

    /// A refusal with this message, which JSON need not escape.
    pub(super) fn refusal(code: u16, message: &str) -> Answer {
        Answer::new(code, status(code, message), Then::End)
    }

    /// Reads an answer about Services of namespace `default`:
    ///
    /// - `list 7 a@3 b@2`: a list of version 7, with the Services' own versions
    /// - `page 7 next a@3`: one of its pages, which leads to `next`
    /// - `half 100 7 a@3`: its first bytes, after which nothing comes
    /// - `watch +a@3 -b@4 ^9 !410`: an addition, a deletion, a bookmark, an error; then nothing
    /// - `end ^9`: a watch that the server then ends; `cut 99 +a@3`: one that breaks after so many bytes
    /// - `503`: a refusal; `429 7`: one that asks to wait; `new`: the server's cache is behind
    pub(super) fn read(text: &str) -> Answer {
        let (kind, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = |text: &str| text.parse().unwrap();
        let all = |text: &str| -> Vec<String> { text.split_whitespace().map(event).collect() };
        match kind {
            "list" => Answer::list(number(first), &all(more)),
            "page" => {
                let (next, items) = more.split_once(' ').unwrap();
                Answer::page(number(first), next, &all(items))
            }
            "half" => {
                let list = Answer::read(&format!("list {more}"));
                Answer { cut: Some(number(first) as usize), then: Then::Hang, ..list }
            }
            "watch" => Answer::watch(&all(rest)),
            "end" => Answer::new(200, lines(&all(rest)), Then::End),
            "cut" => {
                let text = lines(&all(more))[..number(first) as usize].to_owned();
                Answer::new(200, text, Then::Break)
            }
            "new" => Answer::refusal(504, "Too large resource version: 7, current: 5"),
            code => {
                let retry_after = (!rest.is_empty()).then(|| rest.to_owned());
                Answer { retry_after, ..Answer::refusal(code.parse().unwrap(), "because") }
            }
        }
    }
}

/// Reads answers, with `;` between them; `9*503` is the same answer nine times.
pub(super) fn answers(text: &str) -> Vec<Answer> {
    let several = |part: &str| {
        let (count, answer) = part.trim().split_once('*').unwrap_or(("1", part));
        let count: usize = count.parse().unwrap();
        (0..count).map(|_| Answer::read(answer)).collect::<Vec<_>>()
    };
    text.split(';').flat_map(several).collect()
}

/// Reads an event or an item; anything else stays as it is.
fn event(word: &str) -> String {
    let (kind, rest) = word.split_at(1);
    let named = |text: &str| {
        text.split_once('@').map(|(name, version)| service(name, version.parse().unwrap()))
    };
    match kind {
        "+" => added(named(rest).unwrap()),
        "-" => deleted(named(rest).unwrap()),
        "^" => bookmark(rest.parse().unwrap()),
        "!" => {
            format!(r#"{{"type":"ERROR","object":{}}}"#, status(rest.parse().unwrap(), "because"))
        }
        _ => named(word).unwrap_or(word.to_owned()),
    }
}

fn lines(events: &[String]) -> String {
    events.iter().map(|event| format!("{event}\n")).collect()
}

fn status(code: u16, message: &str) -> String {
    format!(r#"{{"kind":"Status","status":"Failure","code":{code},"message":"{message}"}}"#)
}

/// An object of any kind, at this version.
pub(super) fn object(name: &str, version: u32, rest: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","resourceVersion":"{version}","managedFields":[{{"x":1}}]}}{rest}}}"#
    )
}

/// A Service of namespace `default`.
pub(super) fn service(name: &str, version: u32) -> String {
    let rest = r#","spec":{"clusterIPs":["10.96.0.1"],"ports":[{"port":80}]}"#;
    object(&format!("default/{name}"), version, rest)
}

/// An EndpointSlice of namespace `default`, triggered at this time.
pub(super) fn slice(name: &str, version: u32, trigger: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"default","name":"{name}","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"web"}},"annotations":{{"endpoints.kubernetes.io/last-change-trigger-time":"{trigger}"}}}},"addressType":"IPv4"}}"#
    )
}

pub(super) fn added(object: String) -> String {
    format!(r#"{{"type":"ADDED","object":{object}}}"#)
}

pub(super) fn deleted(object: String) -> String {
    format!(r#"{{"type":"DELETED","object":{object}}}"#)
}

pub(super) fn bookmark(version: u32) -> String {
    format!(r#"{{"type":"BOOKMARK","object":{}}}"#, object("", version, ""))
}

/// The server: what it answers to requests for each resource, and what it was asked.
#[derive(Default)]
pub(super) struct Script {
    /// The resource that a test is about.
    resource: &'static str,
    answers: Mutex<HashMap<&'static str, VecDeque<Answer>>>,
    requests: Mutex<Vec<Asked>>,
    restarts: Mutex<Vec<&'static str>>,
}

/// A request: for what, when, and what is accepted as the answer.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    resource: &'static str,
    pub(super) at: Instant,
    pub(super) path: String,
    accept: String,
}

const RESOURCES: [&str; 4] = ["services", "endpointslices", "nodes", "servicecidrs"];

impl Script {
    /// Resources without answers have an empty list and a silent watch. A test is about the first.
    pub(super) fn new<const N: usize>(script: [(&'static str, Vec<Answer>); N]) -> Arc<Script> {
        let resource = script.first().map_or("services", |(resource, _)| *resource);
        let mut answers: HashMap<_, VecDeque<_>> =
            RESOURCES.map(|resource| (resource, VecDeque::new())).into();
        answers.extend(script.map(|(resource, own)| (resource, own.into())));
        for (_, own) in answers.iter_mut().filter(|(_, own)| own.is_empty()) {
            own.extend(self::answers("list 1; watch"));
        }
        Arc::new(Script { resource, answers: Mutex::new(answers), ..Script::default() })
    }

    /// What was asked of a resource, and when.
    pub(super) fn requests(&self, resource: &str) -> Vec<Asked> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|asked| asked.resource == resource).cloned().collect()
    }

    /// The pauses between the requests.
    pub(super) fn pauses(&self) -> Vec<Duration> {
        let requests = self.requests(self.resource);
        requests.windows(2).map(|two| two[1].at - two[0].at).collect()
    }

    /// The versions from which the resource was watched, and `list` for each page of a list.
    pub(super) fn course(&self) -> String {
        let parameter = |path: &str, name: &str| {
            let start = path.find(&format!("&{name}="))? + name.len() + 2;
            Some(path[start..].split('&').next().unwrap().to_owned())
        };
        let step = |Asked { path, .. }: &Asked| {
            if path.contains("watch=true") {
                parameter(path, "resourceVersion").unwrap()
            } else {
                parameter(path, "continue").map_or("list".to_owned(), |next| format!("list-{next}"))
            }
        };
        self.requests(self.resource).iter().map(step).collect::<Vec<_>>().join(" ")
    }

    /// The parameters of each list that say how new it has to be.
    pub(super) fn lists(&self) -> Vec<String> {
        let parameters = ["limit", "continue", "resourceVersion"];
        let of = |path: &str| {
            let (_, query) = path.split_once('?').unwrap();
            let known = query.split('&').filter(|part| {
                part.split_once('=').is_some_and(|(name, _)| parameters.contains(&name))
            });
            known.collect::<Vec<_>>().join("&")
        };
        let requests = self.requests(self.resource);
        let lists = requests.iter().filter(|asked| !asked.path.contains("watch=true"));
        lists.map(|asked| of(&asked.path)).collect()
    }

    /// What was accepted as the answer to each request.
    pub(super) fn accepted(&self) -> Vec<String> {
        self.requests(self.resource).into_iter().map(|asked| asked.accept).collect()
    }

    /// Which watches were opened again.
    pub(super) fn restarts(&self) -> Vec<&'static str> {
        self.restarts.lock().unwrap().clone()
    }

    fn client(self: &Arc<Script>) -> Client {
        let script = self.clone();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let path = request.uri().to_string();
            let plural = request.uri().path().rsplit('/').next().unwrap();
            let kind = Kind::ALL.into_iter().find(|kind| kind.plural() == plural).unwrap();
            let accept = request.headers()["Accept"].to_str().unwrap().to_owned();
            let is_watch = path.contains("watch=true");
            let asked = accept.starts_with("application/vnd.kubernetes.protobuf");
            let answer = script.answers.lock().unwrap().get_mut(plural).unwrap().pop_front();
            let (resource, at) = (kind.plural(), Instant::now());
            script.requests.lock().unwrap().push(Asked { resource, at, path, accept });
            async move {
                let Some(answer) = answer else { return std::future::pending().await };
                let mut response = Response::builder().status(answer.status);
                if let Some(seconds) = &answer.retry_after {
                    response = response.header("Retry-After", seconds);
                }
                let encoded = asked.then(|| answer.in_protobuf(kind, is_watch)).flatten();
                let mut bytes = match answer.protobuf.or(encoded) {
                    Some(protobuf) => {
                        let content_type = "application/vnd.kubernetes.protobuf";
                        response = response.header("Content-Type", content_type);
                        Bytes::from(protobuf)
                    }
                    None => answer.text.into(),
                };
                bytes.truncate(answer.cut.unwrap_or(usize::MAX));
                let body = Parts { parts: [bytes].into(), then: answer.then };
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// Runs the source for node `n` until this much (paused) time has passed, or it has nothing more
    /// to wait for; what it delivered, in words.
    pub(super) async fn run(self: &Arc<Script>, time: Duration) -> Vec<String> {
        let mut told = Vec::new();
        let deliver = |mut delivery: ChangeBatch| {
            let synced = delivery.changes.pop_if(|change| *change == Change::Synced);
            if !delivery.changes.is_empty() {
                told.push(words(&delivery));
            }
            told.extend(synced.map(|_| "synced".to_owned()));
        };
        self.deliveries(time, deliver).await;
        told
    }

    pub(super) async fn deliveries(
        self: &Arc<Script>,
        time: Duration,
        mut deliver: impl FnMut(ChangeBatch),
    ) {
        let script = self.clone();
        let connection = Connection::new(move || Ok(script.client())).unwrap();
        let script = self.clone();
        let source = ApiSource::with(connection, "n", move |incident| {
            if let Incident::Restarted(kind) = incident {
                script.restarts.lock().unwrap().push(kind.resource());
            }
        });
        let run = source.run(|delivery| {
            deliver(delivery);
            ControlFlow::Continue(())
        });
        let _ = tokio::time::timeout(time, run).await;
    }
}

/// Follows a server of Services with these answers for so many seconds; what it was asked, and what was
/// delivered.
pub(super) async fn follow(seconds: u64, text: &str) -> (Arc<Script>, Vec<String>) {
    follow_resource("services", seconds, answers(text)).await
}

/// The same for any resource.
pub(super) async fn follow_resource(
    resource: &'static str,
    seconds: u64,
    answers: Vec<Answer>,
) -> (Arc<Script>, Vec<String>) {
    let script = Script::new([(resource, answers)]);
    let told = script.run(Duration::from_secs(seconds)).await;
    (script, told)
}

/// What was delivered: `+a` is there, `-a` is gone, `=a b` is a whole list.
fn words(delivery: &ChangeBatch) -> String {
    let list = |what: &str, names: &mut dyn Iterator<Item = &str>| {
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        format!("{what}={}", names.join(" "))
    };
    let word = |change: &Change| match change {
        Change::Service(service) => format!("+{}", service.name.name),
        Change::ServiceIgnored(name, _) | Change::Gone(model::Kind::Service, name) => {
            format!("-{}", name.name)
        }
        Change::ServiceCidr(name, _) => format!("+cidr {}", name.name),
        Change::Listed(model::Kind::Service, names) => {
            list("services", &mut names.iter().map(|name| &*name.name))
        }
        Change::Listed(model::Kind::ServiceCidr, names) => {
            list("cidrs", &mut names.iter().map(|name| &*name.name))
        }
        other => format!("{other:?}"),
    };
    delivery.changes.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// The body of an answer, which arrives in parts.
pub(in crate::source::kubernetes) struct Parts {
    parts: VecDeque<Bytes>,
    then: Then,
}

impl Parts {
    /// A body that ends after these parts.
    pub(in crate::source::kubernetes) fn ending<'a>(
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Parts {
        Parts { parts: parts.into_iter().map(Bytes::copy_from_slice).collect(), then: Then::End }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match (self.parts.pop_front(), self.then) {
            (Some(part), _) => Poll::Ready(Some(Ok(Frame::data(part)))),
            (None, Then::End) => Poll::Ready(None),
            (None, Then::Break) => {
                Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::ConnectionReset))))
            }
            (None, Then::Hang) => Poll::Pending,
        }
    }
}

thread_local! {
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What this test logs, at level info and above. Every test has a thread, and one subscriber serves
/// all of them: which events are of interest is decided for the whole process.
pub(super) struct Log;

impl Log {
    pub(super) fn collect() -> Log {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_writer(|| ThisThread).with_ansi(false);
            tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        });
        Log
    }

    /// The lines that hold this text.
    pub(super) fn lines(&self, text: &str) -> Vec<String> {
        let log = LOGGED.with_borrow(|log| String::from_utf8(log.clone()).unwrap());
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

struct ThisThread;

impl io::Write for ThisThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
