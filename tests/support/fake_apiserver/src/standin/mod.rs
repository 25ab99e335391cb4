//! The stand-in: an API server without a cluster behind it.

mod body;
mod encoding;
mod list;
mod misbehaviour;
mod request;
mod selector;
mod serve;
mod shared;
mod status;
mod store;
mod watch;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use shunt_testbed::Netns;

use crate::certs::{Authority, Identity};
use crate::gate::Gate;
use crate::kubeconfig::Kubeconfig;
use crate::object::{Key, Kind, parse};
use crate::runtime::Runtime;

pub use misbehaviour::{Answer, Fault};
pub use request::{Request, Verb};

use shared::Shared;

/// How long a test waits for a request, a watch, and so on.
const PATIENCE: Duration = Duration::from_secs(30);

/// The bearer token that a stand-in takes unless it is told otherwise.
pub const TOKEN: &str = "node-token";

/// A server that keeps objects in memory and speaks list and watch as kube-apiserver does:
/// revisions, selectors, bookmarks, compaction. What a client may do and
/// which combinations of parameters are valid, the real server says.
///
/// The test fills it directly, so that it can do so whatever clients get to see. It listens on a
/// loopback address of the namespace that it is started in; a [`Gate`] makes it
/// reachable from another.
pub struct Standin {
    shared: Arc<Shared>,
    address: SocketAddr,
    authority: Mutex<Option<Authority>>,
    runtime: Runtime,
}

impl Standin {
    /// Starts one that speaks TLS, without objects, and that does everything right.
    pub fn start() -> Result<Self> {
        Self::with(Some(Authority::new()?), true)
    }

    /// The same without HTTP/2.
    pub fn start_http1() -> Result<Self> {
        Self::with(Some(Authority::new()?), false)
    }

    /// The same without TLS.
    pub fn start_plain() -> Result<Self> {
        Self::with(None, false)
    }

    fn with(authority: Option<Authority>, http2: bool) -> Result<Self> {
        let tls = authority.as_ref().map(|authority| authority.acceptor(http2)).transpose()?;
        let shared = Arc::new(Shared::new(tls));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = Runtime::start("api-standin", {
            let shared = Arc::clone(&shared);
            async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                serve::accept(listener, shared).await
            }
        })?;
        Ok(Self { shared, address, authority: Mutex::new(authority), runtime })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The certificate of its authority in PEM; none if it speaks no TLS.
    pub fn authority(&self) -> Option<String> {
        self.lock_authority().as_ref().map(Authority::pem)
    }

    /// A way to it from a network namespace, and a kubeconfig for the agent there.
    pub fn reach(&self, netns: &Netns) -> Result<(Gate, Kubeconfig)> {
        let address = self.address;
        let gate = Gate::open(netns, move || std::net::TcpStream::connect(address))?;
        let authority = self.authority();
        let scheme = if authority.is_some() { "https" } else { "http" };
        let kubeconfig = Kubeconfig::new(&format!("{scheme}://{}", gate.address()))?;
        let kubeconfig = match authority {
            Some(authority) => kubeconfig.authority(&authority)?,
            None => kubeconfig,
        };
        Ok((gate, kubeconfig.token_file(TOKEN)?))
    }

    /// A client certificate that it takes.
    pub fn client_certificate(&self, name: &str) -> Result<Identity> {
        let authority = self.lock_authority();
        authority.as_ref().context("without TLS there are no certificates")?.client(name)
    }

    /// Gets a new authority and a new certificate. Connections that are open stay.
    pub fn rotate_authority(&self) -> Result<()> {
        let authority = Authority::new()?;
        self.shared.set_tls(Some(authority.acceptor(true)?));
        *self.lock_authority() = Some(authority);
        Ok(())
    }

    fn lock_authority(&self) -> MutexGuard<'_, Option<Authority>> {
        self.authority.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on takes this bearer token only. A client certificate does as well.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut self.shared.token());
    }

    /// Makes or replaces the objects of a text of YAML documents.
    pub fn put(&self, manifest: &str) -> Result<()> {
        parse(manifest)?.into_iter().try_for_each(|object| self.put_object(object).map(drop))
    }

    /// Makes or replaces an object, which need not be valid, and returns what became of it.
    pub fn put_object(&self, object: Value) -> Result<Value> {
        let object = self.shared.write(|store| store.put(object))?;
        Ok((*object).clone())
    }

    /// Deletes an object.
    pub fn delete(&self, key: &Key) -> Result<()> {
        if !self.shared.write(|store| store.delete(key)) {
            bail!("the stand-in has no {key}");
        }
        Ok(())
    }

    /// All objects of a kind.
    pub fn all(&self, kind: Kind) -> Vec<Value> {
        self.shared.store().of_kind(kind).map(|object| (**object).clone()).collect()
    }

    /// Forgets the history: who wants to know what happened before now is told 410.
    pub fn compact(&self) {
        self.shared.write(store::Store::compact);
    }

    /// Does something wrong from now on.
    pub fn misbehave(&self, fault: Fault) {
        self.shared.faults().add(fault);
    }

    /// Does everything right from now on, as far as requests go.
    pub fn behave(&self) {
        self.shared.faults().clear();
    }

    /// Ends all connections at once.
    pub fn cut(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Breaks off all open watches of a kind.
    pub fn break_watches(&self, kind: Kind) -> Result<()> {
        self.wait_for_watch(kind)?;
        let _ = self.shared.broken.send(kind);
        Ok(())
    }

    /// Waits until somebody watches a kind.
    pub fn wait_for_watch(&self, kind: Kind) -> Result<()> {
        let is_open = |open: &std::collections::BTreeMap<Kind, usize>| {
            open.get(&kind).is_some_and(|open| *open > 0)
        };
        let mut open = self.shared.open_watches.subscribe();
        self.runtime
            .wait(PATIENCE, async { open.wait_for(is_open).await.map(drop) })
            .with_context(|| format!("nobody watches {kind}"))?;
        Ok(())
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.borrow().clone()
    }
}
