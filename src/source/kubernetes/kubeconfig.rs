//! Kubeconfig files, read like client-go does: leniently, and only the first document.
//!
//! A kubeconfig holds secrets, and a secret may stand in a wrong field. So no error quotes a value
//! of the file: an error names the file, the line, the field and the problem.

use std::path::{Path, PathBuf};

use hyper::Uri;
use kube::Config;
use kube::client::{ConfigExt, RustlsTlsError};
use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError, LoadDataError};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::proxy::Proxy;
use super::server_name::server_name;
use super::token::{Token, TokenError};
use crate::source::spanned_yaml::{
    Diagnostic, Document, FieldPath, Segment, Severity, parse_leniently, typed,
};

/// The fields of a user that name programs.
const PROGRAMS: [&str; 2] = ["exec", "auth-provider"];

/// The server and the user of a kubeconfig.
pub(super) struct Found {
    pub(super) config: Config,
    pub(super) token: Token,
    /// The proxy of `proxy-url`.
    pub(super) proxy: Option<Proxy>,
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
        let mut value = self.document.value();
        if !value.is_object() {
            return Err(self.wrong(FieldPath::default(), "must be a mapping"));
        }
        // Whatever they are, they are refused.
        for user in value["users"].as_array_mut().into_iter().flatten() {
            if let Some(user) = user.get_mut("user").and_then(Value::as_object_mut) {
                user.retain(|name, _| !PROGRAMS.contains(&name.as_str()));
            }
        }
        let mut file: Kubeconfig = typed(&value.to_string())
            .map_err(|error| self.wrong(error.field.first(4), error.reason))?;
        if file.kind.as_ref().is_some_and(|kind| !kind.is_empty() && kind != "Config") {
            return Err(self.wrong(FieldPath::top("kind"), "must be Config in a kubeconfig"));
        }
        let Some(current) = file.current_context.clone().filter(|name| !name.is_empty()) else {
            let reason = "missing; name the context to be used";
            return Err(self.wrong(FieldPath::top("current-context"), reason));
        };
        let Some(number) = file.contexts.iter().position(|context| context.name == current) else {
            let reason = "names a context that is not in contexts";
            return Err(self.wrong(FieldPath::top("current-context"), reason));
        };
        let at_context = Selected { list: "contexts", number, inner: "context" };
        let context = file.contexts[number].context.clone().unwrap_or_default();
        let Some(number) = file.clusters.iter().position(|it| it.name == context.cluster) else {
            let reason = "names a cluster that is not in clusters";
            return Err(self.wrong(at_context.field("cluster"), reason));
        };
        let at_cluster = Selected { list: "clusters", number, inner: "cluster" };
        let mut cluster = file.clusters[number].cluster.take().unwrap_or_default();
        // Like in client-go, a missing user has no credentials.
        let number = file.auth_infos.iter().position(|it| context.user.as_ref() == Some(&it.name));
        let mut user =
            number.and_then(|it| file.auth_infos[it].auth_info.take()).unwrap_or_default();
        let at_user = Selected { list: "users", number: number.unwrap_or_default(), inner: "user" };
        let (token, proxy) = self.prepare(&at_cluster, &mut cluster, &at_user, &mut user)?;
        file.clusters[at_cluster.number].cluster = Some(cluster.clone());
        if let Some(number) = number {
            file.auth_infos[number].auth_info = Some(user);
        }
        let config = self.load(file, &at_cluster, &cluster, &at_user)?;
        Ok(Found { config, token, proxy })
    }

    /// Checks the fields, and makes of them what kube can read: files by their whole paths, and
    /// neither a token nor a proxy, which are not left to kube.
    fn prepare(
        &self,
        at_cluster: &Selected,
        cluster: &mut Cluster,
        at_user: &Selected,
        user: &mut AuthInfo,
    ) -> Result<(Token, Option<Proxy>), Box<Diagnostic>> {
        for field in PROGRAMS {
            let field = at_user.field(field);
            if self.document.describe(&field).is_some_and(|it| it != "null") {
                let reason = "shunt starts no programs to get credentials; give the user a token, a \
                              tokenFile or a client certificate";
                return Err(self.wrong(field, reason));
            }
        }
        for text in [
            &mut cluster.server,
            &mut cluster.certificate_authority,
            &mut cluster.certificate_authority_data,
            &mut cluster.proxy_url,
            &mut cluster.tls_server_name,
            &mut user.username,
            &mut user.token_file,
            &mut user.client_certificate,
            &mut user.client_certificate_data,
            &mut user.client_key,
            &mut user.impersonate,
            &mut user.impersonate_uid,
        ] {
            text.take_if(|text| text.is_empty());
        }
        for secret in [&mut user.password, &mut user.token, &mut user.client_key_data] {
            secret.take_if(|secret| secret.expose_secret().is_empty());
        }
        let is_basic = user.username.is_some() || user.password.is_some();
        if is_basic && (user.token.is_some() || user.token_file.is_some()) {
            let reason = "set together with a token; give the user one of the two";
            return Err(self.wrong(at_user.field("username"), reason));
        }
        let tls = cluster.certificate_authority.is_some()
            || cluster.certificate_authority_data.is_some()
            || user.client_certificate.is_some()
            || user.client_certificate_data.is_some()
            || cluster.insecure_skip_tls_verify == Some(true);
        let url = match (self.master, &cluster.server) {
            (Some(url), _) => server(url, tls).map_err(|reason| {
                problem(self.path, None, FieldPath::default(), format!("--master {reason}"))
            })?,
            (None, Some(url)) => {
                server(url, tls).map_err(|reason| self.wrong(at_cluster.field("server"), reason))?
            }
            (None, None) => {
                let reason = "missing; give the URL of the API server";
                return Err(self.wrong(at_cluster.field("server"), reason));
            }
        };
        cluster.server = Some(url.to_string());
        let proxy = cluster.proxy_url.as_deref().map(|url| {
            Proxy::parse(url).ok_or_else(|| {
                let reason = "is not a URL such as http://proxy:3128 (http, https or socks5)";
                self.wrong(at_cluster.field("proxy-url"), reason)
            })
        });
        let proxy = proxy.transpose()?;
        // Keeps kube from reading the environment; `proxy` selects the proxy.
        cluster.proxy_url = Some("http://proxy.invalid".to_owned());
        for (field, file) in [
            (at_cluster.field("certificate-authority"), &mut cluster.certificate_authority),
            (at_user.field("client-certificate"), &mut user.client_certificate),
            (at_user.field("client-key"), &mut user.client_key),
        ] {
            if let Some(file) = file {
                self.check_file(field, file)?;
                *file = self.resolve(file).to_string_lossy().into_owned();
            }
        }
        if cluster.tls_server_name.as_deref().is_some_and(|name| server_name(name).is_none()) {
            let reason = "is neither a host name nor an IP address";
            return Err(self.wrong(at_cluster.field("tls-server-name"), reason));
        }
        let (given, file) = (user.token.take(), user.token_file.take());
        let given = given.as_ref().map(|token| token.expose_secret());
        let path = file.as_ref().map(|value| self.resolve(value));
        let token = Token::new(given, path.as_deref()).map_err(|error| match error {
            TokenError::Given => {
                let reason = "contains characters that no HTTP header allows";
                self.wrong(at_user.field("token"), reason)
            }
            TokenError::File(error) => {
                let value = file.as_deref().unwrap_or_default();
                self.unreadable(at_user.field("tokenFile"), value, &error.to_string())
            }
        })?;
        Ok((token, proxy))
    }

    /// Reads certificates and keys.
    fn load(
        &self,
        file: Kubeconfig,
        at_cluster: &Selected,
        cluster: &Cluster,
        at_user: &Selected,
    ) -> Result<Config, Box<Diagnostic>> {
        let mut config = Config::try_from(file)
            .map_err(|error| self.unusable(at_cluster, at_user, &error.into()))?;
        config.proxy_url = None;
        let is_file = cluster.certificate_authority_data.is_none();
        // The file is read again periodically, like the token of a service account.
        config.root_cert_file =
            cluster.certificate_authority.as_ref().filter(|_| is_file).map(PathBuf::from);
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let field = match is_file {
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
        Ok(config)
    }

    fn resolve(&self, value: &str) -> PathBuf {
        self.path.parent().map_or_else(|| PathBuf::from(value), |folder| folder.join(value))
    }

    /// Checks that the file in a field can be read.
    fn check_file(&self, field: FieldPath, value: &str) -> Result<(), Box<Diagnostic>> {
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
        let inner = [self.inner, name].map(|name| Segment::Field(name.into()));
        let mut field = FieldPath::top(self.list);
        field.push(Segment::Index(self.number));
        inner.into_iter().for_each(|segment| field.push(segment));
        field
    }
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
