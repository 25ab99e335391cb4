//! Kubeconfig files, read like client-go does: leniently, and only the first document.
//!
//! A kubeconfig holds secrets, and a secret may stand in a wrong field. So no error quotes a value
//! of the file: an error names the file, the line, the field and the problem.

use std::path::{Path, PathBuf};

use hyper::Uri;
use kube::Config;
use kube::client::{ConfigExt, RustlsTlsError};
use kube::config::{Kubeconfig, KubeconfigError, LoadDataError};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::proxy::HttpProxy;
use super::server_name::server_name;
use super::token::{Token, TokenError};
use crate::source::spanned_yaml::{
    Diagnostic, Document, Severity, parse_leniently, push_step, steps, typed,
};

/// The parts of a client, from the current content of the files.
pub(super) struct ClientParts {
    pub(super) config: Config,
    pub(super) token: Token,
    /// The proxy on the way to the server.
    pub(super) proxy: Option<HttpProxy>,
}

/// The fields of a user that name programs.
const PROGRAMS: [&str; 2] = ["exec", "auth-provider"];

const NOT_IN_HEADER: &str = "contains characters that no HTTP header allows";

/// Reads a kubeconfig. `master` replaces the URL of its server.
pub(super) fn read(path: &Path, master: Option<&str>) -> Result<ClientParts, Box<Diagnostic>> {
    let bytes = std::fs::read(path)
        .map_err(|error| problem(path, None, "", format!("cannot be read: {error}")))?;
    let (documents, _) =
        parse_leniently(&bytes).map_err(|error| Box::new(error.in_file(&path.into())))?;
    let Some(document) = documents.first() else {
        let reason = "is empty; write clusters, users, contexts and current-context";
        return Err(problem(path, None, "", reason));
    };
    KubeconfigReader { path, document }.read(master)
}

/// Makes the error about a field such as `users[0].user.token`.
fn problem(
    path: &Path,
    line: Option<u32>,
    field: &str,
    reason: impl Into<String>,
) -> Box<Diagnostic> {
    let problem = Diagnostic::new(Severity::Error, field, reason);
    Box::new(problem.in_file(&path.into(), line))
}

struct KubeconfigReader<'a> {
    path: &'a Path,
    document: &'a Document<'a>,
}

impl KubeconfigReader<'_> {
    fn wrong(&self, field: &str, reason: impl Into<String>) -> Box<Diagnostic> {
        let line = self.document.line_of(field);
        problem(self.path, Some(line), field, reason)
    }

    fn has(&self, field: &str) -> bool {
        self.document.describe(field).is_some_and(|value| value != "null")
    }

    fn read(&self, master: Option<&str>) -> Result<ClientParts, Box<Diagnostic>> {
        let mut value = self.document.value();
        if !value.is_object() {
            return Err(self.wrong("", "must be a mapping"));
        }
        for (list, inner) in [("clusters", "cluster"), ("users", "user")] {
            for item in value[list].as_array_mut().into_iter().flatten() {
                if let Some(fields) = item.get_mut(inner).and_then(Value::as_object_mut) {
                    // Empty is absent; whatever a program is, it is refused.
                    fields.retain(|name, value| *value != "" && !PROGRAMS.contains(&&**name));
                }
            }
        }
        let mut file: Kubeconfig = typed(&value.to_string()).map_err(|error| {
            let mut field = String::new();
            steps(&error.field).take(4).for_each(|step| push_step(&mut field, step));
            let line = self.document.line_of(&error.field);
            problem(self.path, Some(line), &field, error.reason)
        })?;
        if file.kind.as_ref().is_some_and(|kind| !kind.is_empty() && kind != "Config") {
            return Err(self.wrong("kind", "must be Config in a kubeconfig"));
        }
        let Some(current) = file.current_context.as_ref().filter(|name| !name.is_empty()) else {
            return Err(self.wrong("current-context", "missing; name the context to use"));
        };
        let Some(number) = file.contexts.iter().position(|it| it.name == *current) else {
            let reason = "names a context that is not in contexts";
            return Err(self.wrong("current-context", reason));
        };
        let context = file.contexts[number].context.clone().unwrap_or_default();
        let Some(at) = file.clusters.iter().position(|it| it.name == context.cluster) else {
            let field = format!("contexts[{number}].context.cluster");
            return Err(self.wrong(&field, "names a cluster that is not in clusters"));
        };
        let of_cluster = |name: &str| format!("clusters[{at}].cluster.{name}");
        let cluster = file.clusters[at].cluster.get_or_insert_default();
        // Like in client-go, a missing user has no credentials.
        let at = file.auth_infos.iter().position(|it| context.user.as_ref() == Some(&it.name));
        let of_user = |name: &str| format!("users[{}].user.{name}", at.unwrap_or_default());
        let mut nobody = Default::default();
        let user = match at {
            Some(at) => file.auth_infos[at].auth_info.get_or_insert_default(),
            None => &mut nobody,
        };
        for program in PROGRAMS {
            if at.is_some() && self.has(&of_user(program)) {
                let reason = "shunt starts no programs to get credentials; give the user a token, a \
                              tokenFile or a client certificate";
                return Err(self.wrong(&of_user(program), reason));
            }
        }
        let is_basic = user.username.is_some() || user.password.is_some();
        if is_basic && (user.token.is_some() || user.token_file.is_some()) {
            let reason = "set together with a token; give the user one of the two";
            return Err(self.wrong(&of_user("username"), reason));
        }
        let has_authority =
            cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some();
        if has_authority && cluster.insecure_skip_tls_verify == Some(true) {
            let reason = "set together with a certificate authority, which it would leave out; remove \
                          one of the two";
            return Err(self.wrong(&of_cluster("insecure-skip-tls-verify"), reason));
        }
        let tls = has_authority
            || user.client_certificate.is_some()
            || user.client_certificate_data.is_some()
            || cluster.insecure_skip_tls_verify == Some(true);
        let url = match (master, &cluster.server) {
            (Some(url), _) => server(url, tls)
                .map_err(|reason| problem(self.path, None, "", format!("--master {reason}")))?,
            (None, Some(url)) => {
                server(url, tls).map_err(|reason| self.wrong(&of_cluster("server"), reason))?
            }
            (None, None) => {
                let reason = "missing; give the URL of the API server";
                return Err(self.wrong(&of_cluster("server"), reason));
            }
        };
        cluster.server = Some(url.to_string());
        // Keeps kube from reading the environment.
        let proxy = cluster.proxy_url.replace("http://proxy.invalid".to_owned()).map(|proxy| {
            HttpProxy::at(&proxy, &url).filter(|_| proxy.contains("://")).ok_or_else(|| {
                let reason = "is not a URL such as http://proxy:3128 (http, https or socks5)";
                self.wrong(&of_cluster("proxy-url"), reason)
            })
        });
        let proxy = proxy.transpose()?;
        if cluster.tls_server_name.as_deref().is_some_and(|name| server_name(name).is_none()) {
            let reason = "is neither a host name nor an IP address";
            return Err(self.wrong(&of_cluster("tls-server-name"), reason));
        }
        let resolve = |value: &str| match self.path.parent() {
            Some(folder) => folder.join(value),
            None => PathBuf::from(value),
        };
        let files = [
            &mut cluster.certificate_authority,
            &mut user.client_certificate,
            &mut user.client_key,
        ];
        for file in files.into_iter().flatten() {
            *file = resolve(file).to_string_lossy().into_owned();
        }
        let authority = cluster.certificate_authority.as_ref().map(PathBuf::from);
        let authority = authority.filter(|_| cluster.certificate_authority_data.is_none());
        // kube would prefer the token to the file.
        let (given, token_file) = (user.token.take(), user.token_file.take());
        let given = given.as_ref().map(|token| token.expose_secret());
        let token =
            Token::new(given, token_file.as_deref().map(resolve).as_deref()).map_err(|error| {
                match error {
                    TokenError::Given => self.wrong(&of_user("token"), NOT_IN_HEADER),
                    TokenError::File(error) => {
                        // A value that does not look like a path may be the secret itself.
                        let value = token_file.as_deref().unwrap_or_default();
                        let file = match value.starts_with(['/', '.']) && value.len() < 256 {
                            true => format!("the file {}", resolve(value).display()),
                            false => "the file that this field names".to_owned(),
                        };
                        self.wrong(&of_user("tokenFile"), format!("cannot read {file}: {error}"))
                    }
                }
            })?;
        let unusable = |error| self.unusable(&of_cluster(""), &of_user(""), &error);
        let mut config = Config::try_from(file).map_err(|error| unusable(error.into()))?;
        config.proxy_url = None;
        // The file is read again periodically, like the token of a service account.
        config.root_cert_file = authority;
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let empty = RustlsTlsError::AddRootCertificate("empty".into());
            return Err(unusable(kube::Error::RustlsTls(empty)));
        }
        config.rustls_client_config().map_err(unusable)?;
        if config.extra_headers_layer().is_err() {
            return Err(self.wrong(&of_user("as"), NOT_IN_HEADER));
        }
        Ok(ClientParts { config, token, proxy })
    }

    /// Returns the error for a certificate or a key, without the text of libraries, which may quote
    /// it.
    fn unusable(&self, cluster: &str, user: &str, error: &kube::Error) -> Box<Diagnostic> {
        use {KubeconfigError as Load, RustlsTlsError as Tls, kube::Error::*};
        let authority = format!("{cluster}certificate-authority");
        let certificate = format!("{user}client-certificate");
        let key = format!("{user}client-key");
        let (field, reason) = match error {
            InferKubeconfig(Load::LoadCertificateAuthority(error)) => (authority, loading(error)),
            InferKubeconfig(Load::LoadClientCertificate(error)) => (certificate, loading(error)),
            InferKubeconfig(Load::LoadClientKey(error)) => (key, loading(error)),
            InferKubeconfig(Load::ParseCertificates(_))
            | RustlsTls(Tls::AddRootCertificate(_) | Tls::NoValidNativeRootCA(_)) => {
                (authority, "holds no CA certificate in PEM".to_owned())
            }
            RustlsTls(
                Tls::MissingPrivateKey | Tls::UnknownPrivateKeyFormat | Tls::InvalidPrivateKey(_),
            ) => (
                key,
                "holds no private key of the certificate in PEM (PKCS #8, PKCS #1 or SEC 1)"
                    .to_owned(),
            ),
            _ => (certificate, "or client-key holds no valid PEM".to_owned()),
        };
        let data = format!("{field}-data");
        self.wrong(if self.has(&data) { &data } else { &field }, reason)
    }
}

fn loading(error: &LoadDataError) -> String {
    match error {
        LoadDataError::DecodeBase64(_) => "is not valid base64".to_owned(),
        LoadDataError::ReadFile(error, _) => {
            format!("cannot read the file that this field names: {error}")
        }
        LoadDataError::NoBase64DataOrFile => {
            "missing; a client certificate needs its key, and a key its certificate".to_owned()
        }
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
