//! Where the API server is, and who we are to it.

use std::path::{Path, PathBuf};

use hyper::http::uri::InvalidUri;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::{AuthInfo, InClusterError, Kubeconfig, KubeconfigError};

use super::Dialer;

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
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {path} cannot be used: {reason}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Box<KubeconfigError>,
    },
    /// The user has credentials of a kind that we do not support.
    #[error(
        "the kubeconfig {path} gets its credentials from {what}, which shunt does not do (it starts \
         no programs): give the user a token, a tokenFile or a client certificate"
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The kind.
        what: &'static str,
    },
    /// We are in no Pod, or in one without a service account.
    #[error(
        "no API server: give --kubeconfig FILE or --manifests PATH, or run in a Pod with a service \
         account ({0})"
    )]
    InCluster(InClusterError),
    /// The URL is none.
    #[error("--master {url:?} is not a URL: {reason}")]
    Master {
        /// What was given.
        url: String,
        /// Why.
        reason: InvalidUri,
    },
    /// A certificate, a key or a token cannot be read or used.
    #[error("the credentials for the API server cannot be used: {0}")]
    Credentials(Box<kube::Error>),
}

impl From<kube::Error> for AccessError {
    fn from(error: kube::Error) -> AccessError {
        AccessError::Credentials(Box::new(error))
    }
}

impl Access {
    /// Finds out what is wrong with it, certificates, keys and tokens included, without asking the
    /// server.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), AccessError> {
        let config = self.config()?;
        config.rustls_client_config()?;
        config.auth_layer()?;
        Ok(())
    }

    /// Reads the files as they are now.
    ///
    /// # Errors
    /// If there is no server to be found, or the credentials are unusable.
    pub fn config(&self) -> Result<Config, AccessError> {
        let master = self.master.as_deref().filter(|master| !master.is_empty());
        let uri = |url: &str| {
            url.parse().map_err(|reason| AccessError::Master { url: url.to_owned(), reason })
        };
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        match (&self.kubeconfig, master) {
            (Some(path), _) => from_kubeconfig(path, master),
            // As client-go does: outside of a Pod the URL alone has to do.
            (None, Some(url)) if !in_pod => Ok(Config::new(uri(url)?)),
            (None, master) => {
                let mut config = Config::incluster_env().map_err(AccessError::InCluster)?;
                if let Some(url) = master {
                    config.cluster_url = uri(url)?;
                }
                Ok(config)
            }
        }
    }
}

fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<Config, AccessError> {
    let unusable =
        |reason| AccessError::Kubeconfig { path: path.to_owned(), reason: Box::new(reason) };
    let mut file = Kubeconfig::read_from(path).map_err(unusable)?;
    let context = file.contexts.iter().find(|c| Some(&c.name) == file.current_context.as_ref());
    let context = context.and_then(|named| named.context.clone());
    let mut ca_file = None;
    if let Some(context) = context {
        let cluster = file.clusters.iter_mut().find(|cluster| cluster.name == context.cluster);
        if let Some(cluster) = cluster.and_then(|named| named.cluster.as_mut()) {
            if let Some(url) = master {
                cluster.server = Some(url.to_owned());
            }
            if cluster.certificate_authority_data.is_none() {
                ca_file = cluster.certificate_authority.clone().filter(|path| !path.is_empty());
            }
        }
        let user = file.auth_infos.iter().find(|user| Some(&user.name) == context.user.as_ref());
        let user = user.and_then(|named| named.auth_info.as_ref());
        if let Some(what) = user.and_then(unsupported) {
            return Err(AccessError::Unsupported { path: path.to_owned(), what });
        }
    }
    let mut config = Config::try_from(file).map_err(unusable)?;
    // The file is read again now and then, as the one of a service account is.
    config.root_cert_file = ca_file.map(PathBuf::from);
    Ok(config)
}

fn unsupported(user: &AuthInfo) -> Option<&'static str> {
    match user {
        AuthInfo { exec: Some(_), .. } => Some("a program (exec)"),
        AuthInfo { auth_provider: Some(_), .. } => Some("an auth-provider"),
        _ => None,
    }
}
