//! Configuration files for clients.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shunt_testbed::TempDir;

use crate::certs::Identity;

/// A kubeconfig, with the files that it names beside it. They are gone when it is dropped.
pub struct Kubeconfig {
    scratch: TempDir,
    server: String,
    authority: Option<String>,
    user: String,
    cluster: String,
}

impl Kubeconfig {
    /// For the server at this address (`https://127.0.0.1:6443`), without credentials.
    pub fn new(server: &str) -> Result<Self> {
        let scratch = TempDir::new()?;
        let (server, user) = (server.to_owned(), String::new());
        let config = Self { scratch, server, authority: None, user, cluster: String::new() };
        config.write()?;
        Ok(config)
    }

    /// The path of the file.
    pub fn path(&self) -> PathBuf {
        self.file("kubeconfig")
    }

    /// Names a file with the server's authority (`certificate-authority`).
    pub fn authority(mut self, pem: &str) -> Result<Self> {
        self.authority = Some(format!("certificate-authority: {}", self.file("ca.crt").display()));
        self.set_authority(pem)?;
        self.write().map(|()| self)
    }

    /// Replaces what is in the file with the authority.
    pub fn set_authority(&self, pem: &str) -> Result<()> {
        replace(&self.file("ca.crt"), pem)
    }

    /// Identifies by a token in the file itself.
    pub fn token(mut self, token: &str) -> Result<Self> {
        self.user = format!("token: {token}");
        self.write().map(|()| self)
    }

    /// Identifies by a token in another file (`tokenFile`).
    pub fn token_file(mut self, token: &str) -> Result<Self> {
        self.user = format!("tokenFile: {}", self.file("token").display());
        self.set_token(token)?;
        self.write().map(|()| self)
    }

    /// Replaces what is in the file with the token.
    pub fn set_token(&self, token: &str) -> Result<()> {
        replace(&self.file("token"), token)
    }

    /// Identifies by a client certificate in files.
    pub fn certificate(mut self, identity: &Identity) -> Result<Self> {
        replace(&self.file("client.crt"), &identity.certificate)?;
        replace(&self.file("client.key"), &identity.key)?;
        self.user = format!(
            "client-certificate: {}, client-key: {}",
            self.file("client.crt").display(),
            self.file("client.key").display()
        );
        self.write().map(|()| self)
    }

    /// Identifies as these fields of a user say.
    pub fn user(mut self, fields: &str) -> Result<Self> {
        fields.clone_into(&mut self.user);
        self.write().map(|()| self)
    }

    /// Adds these fields to the cluster.
    pub fn cluster(mut self, fields: &str) -> Result<Self> {
        self.cluster = format!(", {fields}");
        self.write().map(|()| self)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn write(&self) -> Result<()> {
        let mut cluster = format!("server: {:?}", self.server);
        if let Some(authority) = &self.authority {
            let _ = write!(cluster, ", {authority}");
        }
        cluster.push_str(&self.cluster);
        let text = format!(
            "apiVersion: v1\nkind: Config\n\
             clusters: [{{name: c, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             current-context: x\n",
            self.user
        );
        replace(&self.path(), &text)
    }
}

/// Replaces a file as Kubernetes does: a reader sees the old content or the new.
fn replace(file: &Path, content: &str) -> Result<()> {
    let growing = file.with_extension("new");
    fs::write(&growing, content)
        .and_then(|()| fs::rename(&growing, file))
        .with_context(|| format!("cannot write {}", file.display()))
}
