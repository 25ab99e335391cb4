//! Kubeconfig files, read like client-go does: leniently, and only the first document.
//!
//! A kubeconfig holds secrets, and a secret may stand in a wrong field. So no error quotes a value
//! of the file: an error names the file, the line, the field and the problem.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hyper::Uri;
use kube::Config;
use kube::client::{ConfigExt, RustlsTlsError};
use kube::config::{self, Kubeconfig, KubeconfigError, LoadDataError};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::proxy::Proxy;
use super::server_name::server_name;
use super::token::{Token, TokenError};
use crate::source::spanned_yaml::{
    Diagnostic, Document, FieldPath, Segment, Severity, parse_leniently, typed,
};

/// The server and the user of a kubeconfig.
pub(super) struct Found {
    pub(super) config: Config,
    pub(super) token: Token,
    /// The proxy of `proxy-url`.
    pub(super) proxy: Option<Proxy>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    kind: Option<String>,
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    proxy_url: Option<String>,
    tls_server_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    r#as: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<HashMap<String, Vec<String>>>,
    auth_provider: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
}

/// Reads a kubeconfig. `master` replaces the URL of its server.
pub(super) fn read(path: &Path, master: Option<&str>) -> Result<Found, Box<Diagnostic>> {
    let bytes = std::fs::read(path).map_err(|error| {
        problem(path, None, FieldPath::default(), format!("cannot be read: {error}"))
    })?;
    let (documents, _) = parse_leniently(&bytes).map_err(|error| {
        let reason = format!("column {}: {}", error.column, error.reason);
        problem(path, Some(error.line), FieldPath::default(), reason)
    })?;
    let Some(document) = documents.first() else {
        let reason = "is empty; write clusters, users, contexts and current-context";
        return Err(problem(path, None, FieldPath::default(), reason));
    };
    Reader { path, document, master }.read()
}

fn problem(
    path: &Path,
    line: Option<u32>,
    field: FieldPath,
    reason: impl Into<String>,
) -> Box<Diagnostic> {
    Box::new(Diagnostic::new(Severity::Error, field, reason).in_file(&path.into(), line))
}

struct Reader<'a> {
    path: &'a Path,
    document: &'a Document<'a>,
    master: Option<&'a str>,
}

impl Reader<'_> {
    fn wrong(&self, field: FieldPath, reason: impl Into<String>) -> Box<Diagnostic> {
        problem(self.path, Some(self.document.line_of(&field)), field, reason)
    }

    fn read(&self) -> Result<Found, Box<Diagnostic>> {
        let value = self.document.value();
        if !value.is_object() {
            return Err(self.wrong(FieldPath::default(), "must be a mapping"));
        }
        let file: File = typed(&value.to_string())
            .map_err(|error| self.wrong(known(&error.field), error.reason))?;
        if file.kind.is_some_and(|kind| !kind.is_empty() && kind != "Config") {
            return Err(self.wrong(FieldPath::top("kind"), "must be Config in a kubeconfig"));
        }
        let Some(current) = file.current_context.filter(|name| !name.is_empty()) else {
            let reason = "missing; name the context to be used";
            return Err(self.wrong(FieldPath::top("current-context"), reason));
        };
        let contexts = file.contexts.unwrap_or_default();
        let Some((number, context)) =
            contexts.into_iter().enumerate().find(|(_, context)| context.name == current)
        else {
            let reason = "names a context that is not in contexts";
            return Err(self.wrong(FieldPath::top("current-context"), reason));
        };
        let context = context.context.unwrap_or_default();
        let cluster_name = context.cluster.unwrap_or_default();
        let mut clusters = file.clusters.unwrap_or_default().into_iter().enumerate();
        let Some((cluster_number, cluster)) =
            clusters.find(|(_, cluster)| cluster.name == cluster_name)
        else {
            let mut field = element("contexts", number, "context");
            field.push(Segment::Field("cluster".into()));
            return Err(self.wrong(field, "names a cluster that is not in clusters"));
        };
        // Like in client-go, a missing user has no credentials.
        let mut users = file.users.unwrap_or_default().into_iter().enumerate();
        let user = context.user.and_then(|name| users.find(|(_, user)| user.name == name));
        let (user_number, user) = user.unwrap_or_default();
        self.found(
            &Selected { list: "clusters", number: cluster_number, inner: "cluster" },
            cluster.cluster.unwrap_or_default(),
            &Selected { list: "users", number: user_number, inner: "user" },
            user.user.unwrap_or_default(),
        )
    }

    fn found(
        &self,
        at_cluster: &Selected,
        cluster: Cluster,
        at_user: &Selected,
        user: User,
    ) -> Result<Found, Box<Diagnostic>> {
        for (given, field) in
            [(user.exec.is_some(), "exec"), (user.auth_provider.is_some(), "auth-provider")]
        {
            if given {
                let reason = "shunt starts no programs to get credentials; give the user a token, a \
                              tokenFile or a client certificate";
                return Err(self.wrong(at_user.field(field), reason));
            }
        }
        let has = |value: &Option<String>| value.as_ref().is_some_and(|value| !value.is_empty());
        let basic = has(&user.username) || has(&user.password);
        if basic && (has(&user.token) || has(&user.token_file)) {
            let reason = "set together with a token; give the user one of the two";
            return Err(self.wrong(at_user.field("username"), reason));
        }
        let tls = has(&cluster.certificate_authority)
            || has(&cluster.certificate_authority_data)
            || has(&user.client_certificate)
            || has(&user.client_certificate_data)
            || cluster.insecure_skip_tls_verify == Some(true);
        let server = match (self.master, &cluster.server) {
            (Some(url), _) => server(url, tls).map_err(|reason| {
                problem(self.path, None, FieldPath::default(), format!("--master {reason}"))
            })?,
            (None, Some(url)) if !url.is_empty() => {
                server(url, tls).map_err(|reason| self.wrong(at_cluster.field("server"), reason))?
            }
            (None, _) => {
                let reason = "missing; give the URL of the API server";
                return Err(self.wrong(at_cluster.field("server"), reason));
            }
        };
        let proxy = match cluster.proxy_url.as_deref().filter(|url| !url.is_empty()) {
            None => None,
            Some(url) => Some(Proxy::parse(url).ok_or_else(|| {
                let reason = "is not a URL such as http://proxy:3128 (http, https or socks5)";
                self.wrong(at_cluster.field("proxy-url"), reason)
            })?),
        };
        let files = [
            (at_cluster.field("certificate-authority"), cluster.certificate_authority.clone()),
            (at_user.field("client-certificate"), user.client_certificate.clone()),
            (at_user.field("client-key"), user.client_key.clone()),
        ];
        for (field, value) in files {
            self.check_file(field, value.as_deref())?;
        }

        let nonempty = |value: Option<String>| value.filter(|value| !value.is_empty());
        let file = |value: Option<String>| {
            let value = nonempty(value)?;
            Some(self.resolve(&value).to_string_lossy().into_owned())
        };
        let given = nonempty(user.token);
        let token_file = nonempty(user.token_file);
        let token_path = token_file.as_ref().map(|value| self.resolve(value));
        let token =
            Token::new(given.as_deref(), token_path.as_deref()).map_err(|error| match error {
                TokenError::Given => {
                    let reason = "contains characters that no HTTP header allows";
                    self.wrong(at_user.field("token"), reason)
                }
                TokenError::File(error) => {
                    let value = token_file.as_deref().unwrap_or_default();
                    self.unreadable(at_user.field("tokenFile"), value, &error.to_string())
                }
            })?;
        let authority_file = file(cluster.certificate_authority);
        let authority_data = nonempty(cluster.certificate_authority_data);
        let mut auth_info = config::AuthInfo {
            username: nonempty(user.username),
            password: nonempty(user.password).map(Into::into),
            client_certificate: file(user.client_certificate),
            client_certificate_data: nonempty(user.client_certificate_data),
            client_key: file(user.client_key),
            client_key_data: nonempty(user.client_key_data).map(Into::into),
            impersonate: nonempty(user.r#as),
            impersonate_uid: nonempty(user.as_uid),
            impersonate_groups: user.as_groups,
            ..Default::default()
        };
        auth_info.impersonate_user_extra = user.as_user_extra;
        let authority_is_file = authority_data.is_none();
        let mut config = load(&server, authority_file.clone(), authority_data, auth_info)
            .map_err(|error| self.unusable(at_cluster, at_user, &error))?;
        config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
        config.tls_server_name = nonempty(cluster.tls_server_name);
        if config.tls_server_name.as_deref().is_some_and(|name| server_name(name).is_none()) {
            let reason = "is neither a host name nor an IP address";
            return Err(self.wrong(at_cluster.field("tls-server-name"), reason));
        }
        // The file is read again periodically, like the token of a service account.
        config.root_cert_file = authority_file.filter(|_| authority_is_file).map(PathBuf::from);
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let field = match authority_is_file {
                true => "certificate-authority",
                false => "certificate-authority-data",
            };
            return Err(self.wrong(at_cluster.field(field), "holds no certificate in PEM"));
        }
        config
            .rustls_client_config()
            .map_err(|error| self.unusable(at_cluster, at_user, &error))?;
        if config.extra_headers_layer().is_err() {
            let reason = "contains characters that no HTTP header allows";
            return Err(self.wrong(at_user.field("as"), reason));
        }
        Ok(Found { config, token, proxy })
    }

    fn resolve(&self, value: &str) -> PathBuf {
        self.path.parent().map_or_else(|| PathBuf::from(value), |folder| folder.join(value))
    }

    /// Checks that the file in a field can be read.
    fn check_file(&self, field: FieldPath, value: Option<&str>) -> Result<(), Box<Diagnostic>> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(()) };
        let path = self.resolve(value);
        match std::fs::File::open(&path).and_then(|file| file.metadata()) {
            Ok(found) if !found.is_dir() => Ok(()),
            found => {
                let reason = match found {
                    Ok(_) => "it is a directory".to_owned(),
                    Err(error) => error.to_string(),
                };
                Err(self.unreadable(field, value, &reason))
            }
        }
    }

    /// Returns the error for an unreadable file in a field.
    fn unreadable(&self, field: FieldPath, value: &str, reason: &str) -> Box<Diagnostic> {
        // A value that does not look like a path may be the secret itself.
        let file = match value.starts_with(['/', '.']) && value.len() < 256 {
            true => format!("the file {}", self.resolve(value).display()),
            false => "the file that this field names".to_owned(),
        };
        self.wrong(field, format!("{file} cannot be read: {reason}"))
    }

    /// Returns the error for a certificate or a key, without the text of libraries, which may quote
    /// it.
    fn unusable(
        &self,
        at_cluster: &Selected,
        at_user: &Selected,
        error: &kube::Error,
    ) -> Box<Diagnostic> {
        const PEM: &str = "holds no valid PEM";
        let authority =
            || match self.document.describe(&at_cluster.field("certificate-authority-data")) {
                Some(_) => at_cluster.field("certificate-authority-data"),
                None => at_cluster.field("certificate-authority"),
            };
        let of_user =
            |name: &str| match self.document.describe(&at_user.field(&format!("{name}-data"))) {
                Some(_) => at_user.field(&format!("{name}-data")),
                None => at_user.field(name),
            };
        let certificate = || of_user("client-certificate");
        let key = || of_user("client-key");
        let loading = |error: &LoadDataError| match error {
            LoadDataError::DecodeBase64(_) => "is not valid base64".to_owned(),
            LoadDataError::ReadFile(error, _) => format!("the file cannot be read: {error}"),
            LoadDataError::NoBase64DataOrFile => {
                "missing; a certificate and a key need each other".to_owned()
            }
        };
        match error {
            kube::Error::InferKubeconfig(error) => match error {
                KubeconfigError::LoadCertificateAuthority(error) => {
                    self.wrong(authority(), loading(error))
                }
                KubeconfigError::LoadClientCertificate(error) => {
                    self.wrong(certificate(), loading(error))
                }
                KubeconfigError::LoadClientKey(error) => self.wrong(key(), loading(error)),
                KubeconfigError::ParseCertificates(_) => {
                    self.wrong(authority(), format!("{PEM} of a certificate"))
                }
                _ => self.wrong(FieldPath::default(), "names no usable cluster and user"),
            },
            kube::Error::RustlsTls(error) => match error {
                RustlsTlsError::AddRootCertificate(_) | RustlsTlsError::NoValidNativeRootCA(_) => {
                    self.wrong(authority(), "holds no usable certificate of an authority")
                }
                RustlsTlsError::MissingPrivateKey | RustlsTlsError::UnknownPrivateKeyFormat => {
                    self.wrong(key(), "holds no private key in PEM (PKCS #8, PKCS #1 or SEC 1)")
                }
                RustlsTlsError::InvalidPrivateKey(_) => {
                    self.wrong(key(), "is not a usable key, or not that of the certificate")
                }
                RustlsTlsError::MissingCertificate => {
                    self.wrong(certificate(), format!("{PEM} of a certificate"))
                }
                RustlsTlsError::InvalidIdentityPem(_) => {
                    self.wrong(certificate(), "or client-key holds no valid PEM")
                }
                RustlsTlsError::InvalidServerName(_) => {
                    self.wrong(at_cluster.field("server"), "holds no valid host name")
                }
            },
            _ => self.wrong(at_user.field("client-certificate"), "cannot be used"),
        }
    }
}

/// The selected element of a list.
struct Selected {
    list: &'static str,
    number: usize,
    inner: &'static str,
}

impl Selected {
    fn field(&self, name: &str) -> FieldPath {
        let mut field = element(self.list, self.number, self.inner);
        field.push(Segment::Field(name.into()));
        field
    }
}

fn element(list: &str, number: usize, inner: &str) -> FieldPath {
    let mut field = FieldPath::top(list);
    field.push(Segment::Index(number));
    field.push(Segment::Field(inner.into()));
    field
}

/// Returns the part of a path without the keys that the file itself chooses.
fn known(field: &FieldPath) -> FieldPath {
    let mut known = FieldPath::default();
    for segment in field.segments() {
        known.push(segment.clone());
        if *segment == Segment::Field("as-user-extra".into()) {
            break;
        }
    }
    known
}

/// Parses the URL of a server. Without a scheme it is `https` if any field is about TLS, like in
/// client-go. The error does not quote the URL, which may hold a password.
pub(super) fn server(url: &str, tls: bool) -> Result<Uri, &'static str> {
    const NO_URL: &str = "is not a URL such as https://10.0.0.1:6443";
    let scheme = if tls { "https" } else { "http" };
    let parsed = match url.contains("://") {
        true => url.parse::<Uri>(),
        false => format!("{scheme}://{url}").parse(),
    };
    let parsed = parsed.map_err(|_| NO_URL)?;
    let host = parsed.host().filter(|host| !host.is_empty());
    if host.is_none() || !matches!(parsed.scheme_str(), Some("http" | "https")) {
        return Err(NO_URL);
    }
    if parsed.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("holds a user name; give the user of the kubeconfig credentials instead");
    }
    Ok(parsed)
}

/// Returns the configuration with which kube reads certificates and keys.
fn load(
    server: &Uri,
    authority_file: Option<String>,
    authority_data: Option<String>,
    auth_info: config::AuthInfo,
) -> Result<Config, kube::Error> {
    let name = String::new;
    let cluster = config::Cluster {
        server: Some(server.to_string()),
        certificate_authority: authority_file,
        certificate_authority_data: authority_data,
        // Keeps kube from reading the environment; `proxy` selects the proxy.
        proxy_url: Some("http://proxy.invalid".to_owned()),
        ..Default::default()
    };
    let context = config::Context { cluster: name(), user: Some(name()), ..Default::default() };
    let file = Kubeconfig {
        current_context: Some(name()),
        contexts: vec![config::NamedContext {
            name: name(),
            context: Some(context),
            ..Default::default()
        }],
        clusters: vec![config::NamedCluster {
            name: name(),
            cluster: Some(cluster),
            ..Default::default()
        }],
        auth_infos: vec![config::NamedAuthInfo {
            name: name(),
            auth_info: Some(auth_info),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut config = Config::try_from(file)?;
    config.proxy_url = None;
    Ok(config)
}
