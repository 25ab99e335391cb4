//! The address of the API server, and the agent's credentials.

use std::path::PathBuf;

use hyper::Uri;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::InClusterError;

use super::kubeconfig::ClientParts;
use super::proxy::HttpProxy;
use super::token::{Token, TokenError};
use super::{ContentType, Dialer, kubeconfig};
use crate::source::spanned_yaml::Diagnostic;

/// The settings of the access to the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The kubeconfig file. None: the service account of the agent's Pod.
    pub kubeconfig: Option<PathBuf>,
    /// The URL of the server, which replaces the one of the kubeconfig or the Pod's environment.
    pub master: Option<String>,
    /// Connects from another network namespace, which is tried before the agent's own.
    pub dialer: Option<Dialer>,
    /// The preferred content type of lists and watches. JSON is always accepted.
    pub content_type: ContentType,
}

/// An error of the settings: retries would not help.
///
/// No error quotes a value of a kubeconfig, a URL, or the error of a library that may quote them:
/// they may hold secrets.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(Box<Diagnostic>),
    /// The agent runs in no Pod, or in a Pod without a service account.
    #[error(
        "no API server: give --kubeconfig FILE or --manifests PATH, or run in a Pod with a service \
         account ({0})"
    )]
    InCluster(InClusterError),
    /// The URL is not valid.
    #[error("--master {0}")]
    Master(&'static str),
    /// A certificate, a key or a token cannot be read or used.
    #[error("cannot use the credentials for the API server: {0}")]
    Credentials(String),
}

impl From<kube::Error> for AccessError {
    fn from(_: kube::Error) -> AccessError {
        let reason =
            "a certificate, a key or the token is not valid; check the files that hold them";
        AccessError::Credentials(reason.to_owned())
    }
}

impl Access {
    /// Checks the settings, with certificates, keys and tokens, without a request to the server.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), AccessError> {
        let ClientParts { config, proxy, .. } = self.prepare()?;
        if let Some(proxy) = proxy {
            tracing::info!(%proxy, "connecting to the API server through a proxy");
        }
        config.rustls_client_config()?;
        Ok(())
    }

    /// Returns the URL of the server for people: without a path or a query, which may be secret.
    ///
    /// # Errors
    /// If no server is configured, or the credentials cannot be used.
    pub fn server(&self) -> Result<String, AccessError> {
        let url = self.prepare()?.config.cluster_url;
        let scheme = url.scheme_str().unwrap_or("https");
        let host = url.host().unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Ok(format!("{scheme}://{host}{port}/"))
    }

    /// Returns the name or address in the URL of the server, without brackets.
    ///
    /// # Errors
    /// As for [`server`](Access::server).
    pub fn host(&self) -> Result<String, AccessError> {
        let url = self.prepare()?.config.cluster_url;
        let host = url.host().unwrap_or_default();
        Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned())
    }

    /// Reads the files.
    pub(super) fn prepare(&self) -> Result<ClientParts, AccessError> {
        let master = self.master.as_deref().filter(|master| !master.is_empty());
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let uri = |url: &str| -> Result<Uri, AccessError> {
            kubeconfig::server(url, in_pod).map_err(AccessError::Master)
        };
        let (config, token) = match (&self.kubeconfig, master) {
            (Some(path), _) => {
                let found = kubeconfig::read(path, master).map_err(AccessError::Kubeconfig)?;
                if found.proxy.is_some() {
                    return Ok(found);
                }
                (found.config, found.token)
            }
            // Like client-go: outside of a Pod, the URL alone is enough.
            (None, Some(url)) if !in_pod => (Config::new(uri(url)?), Token::default()),
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
                            format!("cannot read the token file {file}: {error}")
                        }
                    })
                })?;
                (config, token)
            }
        };
        let variable = |name: &str| std::env::var(name).ok();
        let proxy = HttpProxy::from_environment(&config.cluster_url, variable);
        Ok(ClientParts { config, token, proxy })
    }
}
