//! Where the API server is, and who we are to it.

use std::path::PathBuf;

use hyper::Uri;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::InClusterError;

use super::proxy::Proxy;
use super::token::{Token, TokenError};
use super::{Dialer, kubeconfig};
use crate::spanned_yaml::Diagnostic;

/// How to reach the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The kubeconfig file. None: the service account of the Pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// The URL of the server, if it is another one than the kubeconfig or the Pod's environment
    /// says.
    pub master: Option<String>,
    /// Makes connections from another network namespace than ours, which is tried first.
    pub dialer: Option<Dialer>,
}

/// The server cannot be reached as it was asked for; trying again would not help.
///
/// No error quotes a value of a kubeconfig, nor a URL, nor the error of a library that may do so:
/// these may hold secrets.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(Box<Diagnostic>),
    /// We are in no Pod, or in one without a service account.
    #[error(
        "no API server: give --kubeconfig FILE or --manifests PATH, or run in a Pod with a service \
         account ({0})"
    )]
    InCluster(InClusterError),
    /// The URL is none.
    #[error("--master {0}")]
    Master(&'static str),
    /// A certificate, a key or a token cannot be read or used.
    #[error("the credentials for the API server cannot be used: {0}")]
    Credentials(String),
}

impl From<kube::Error> for AccessError {
    fn from(error: kube::Error) -> AccessError {
        AccessError::Credentials(match error {
            kube::Error::RustlsTls(_) => {
                "a certificate or a key is not valid; check the files that hold them".to_owned()
            }
            kube::Error::Auth(kube::client::AuthError::ReadTokenFile(error, path)) => {
                format!("the token file {} cannot be read: {error}", path.display())
            }
            kube::Error::Auth(_) => {
                "the token is not valid; check the file that holds it".to_owned()
            }
            _ => "check the certificates, the keys and the token".to_owned(),
        })
    }
}

/// All that it takes to make a client, as the files are now.
pub(super) struct Prepared {
    pub(super) config: Config,
    pub(super) token: Token,
    /// The proxy on the way to the server.
    pub(super) proxy: Option<Proxy>,
    /// A variable of the environment that names no proxy though it should.
    ignored: Option<&'static str>,
}

impl Prepared {
    /// With the proxy that the environment asks for.
    fn new(config: Config, token: Token) -> Prepared {
        let mut ignored = None;
        let variable = |name: &str| std::env::var(name).ok();
        let proxy =
            Proxy::from_environment(&config.cluster_url, variable, |name| ignored = Some(name));
        Prepared { config, token, proxy, ignored }
    }
}

impl Access {
    /// Finds out what is wrong with it, certificates, keys and tokens included, without asking the
    /// server.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), AccessError> {
        let Prepared { config, proxy, ignored, .. } = self.prepare()?;
        if let Some(proxy) = proxy {
            tracing::info!(%proxy, "connecting to the API server through a proxy");
        }
        if let Some(variable) = ignored {
            tracing::warn!(
                "{variable} is ignored: it is not a URL such as http://proxy:3128 (http, https or socks5)"
            );
        }
        config.rustls_client_config()?;
        Ok(())
    }

    /// Returns the URL of the server for people: without a path or a query, which may be secret.
    ///
    /// # Errors
    /// If there is no server to be found, or the credentials are unusable.
    pub fn server(&self) -> Result<String, AccessError> {
        let url = self.prepare()?.config.cluster_url;
        let scheme = url.scheme_str().unwrap_or("https");
        let host = url.host().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(format!("{scheme}://{host}{port}/"))
    }

    /// Reads the files.
    pub(super) fn prepare(&self) -> Result<Prepared, AccessError> {
        let master = self.master.as_deref().filter(|master| !master.is_empty());
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let uri = |url: &str| -> Result<Uri, AccessError> {
            kubeconfig::server(url, in_pod).map_err(AccessError::Master)
        };
        match (&self.kubeconfig, master) {
            (Some(path), _) => {
                let found = kubeconfig::read(path, master).map_err(AccessError::Kubeconfig)?;
                let mut prepared = Prepared::new(found.config, found.token);
                if found.proxy.is_some() {
                    (prepared.proxy, prepared.ignored) = (found.proxy, None);
                }
                Ok(prepared)
            }
            // As client-go does: outside of a Pod the URL alone has to do.
            (None, Some(url)) if !in_pod => {
                Ok(Prepared::new(Config::new(uri(url)?), Token::default()))
            }
            (None, master) => {
                let mut config = Config::incluster_env().map_err(AccessError::InCluster)?;
                if let Some(url) = master {
                    config.cluster_url = uri(url)?;
                }
                let file = config.auth_info.token_file.take().unwrap_or_default();
                let token = Token::new(None, Some(file.as_ref())).map_err(|error| {
                    AccessError::Credentials(match error {
                        TokenError::Given => "the token is not valid".to_owned(),
                        TokenError::File(error) => {
                            format!("the token file {file} cannot be read: {error}")
                        }
                    })
                })?;
                Ok(Prepared::new(config, token))
            }
        }
    }
}
