//! Selects the proxy to the server like client-go: the kubeconfig's `proxy-url`, otherwise the
//! environment by the rules of Go's `golang.org/x/net/http/httpproxy`.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use ipnet::IpNet;

/// A proxy. Shown without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Scheme, host and port.
    pub(super) url: Uri,
    pub(super) kind: ProxyKind,
    pub(super) credentials: Option<Credentials>,
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyKind {
    Http,
    Https,
    Socks5,
}

/// A user name and a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.to_string();
        f.write_str(url.strip_suffix('/').unwrap_or(&url))
    }
}

impl Proxy {
    /// Parses the URL of a proxy. Returns `None` if it is invalid or has an unknown scheme.
    pub(super) fn parse(url: &str) -> Option<Proxy> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let (kind, default_port) = match &*scheme {
            "http" => (ProxyKind::Http, 80),
            "https" => (ProxyKind::Https, 443),
            "socks5" | "socks5h" => (ProxyKind::Socks5, 1080),
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let parsed: Uri = format!("{scheme}://{host}").parse().ok()?;
        let name = parsed.host().filter(|name| !name.is_empty())?;
        let port = parsed.port_u16().unwrap_or(default_port);
        let credentials = match user {
            None => None,
            Some(user) => {
                let (user, password) = user.split_once(':').unwrap_or((user, ""));
                Some(Credentials { user: decode(user)?, password: decode(password)? })
            }
        };
        let url = format!("{scheme}://{name}:{port}").parse().ok()?;
        Some(Proxy { url, kind, credentials })
    }

    /// Returns the value of `Proxy-Authorization` for an HTTP proxy.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let Credentials { user, password } = self.credentials.as_ref()?;
        let mut header = HeaderValue::try_from(format!(
            "Basic {}",
            STANDARD.encode(format!("{user}:{password}"))
        ))
        .ok()?;
        header.set_sensitive(true);
        Some(header)
    }

    /// Returns the environment's proxy for `server`. Calls `ignored` with the name of a variable
    /// without a valid proxy.
    pub(super) fn from_environment(
        server: &Uri,
        variable: impl Fn(&str) -> Option<String>,
        ignored: impl FnOnce(&'static str),
    ) -> Option<Proxy> {
        let first = |names: [&'static str; 2]| {
            let set = |name| variable(name).filter(|value| !value.is_empty());
            names.into_iter().find_map(|name| Some((name, set(name)?)))
        };
        let is_tls = server.scheme_str() != Some("http");
        let (name, url) = first(match is_tls {
            true => ["HTTPS_PROXY", "https_proxy"],
            false => ["HTTP_PROXY", "http_proxy"],
        })?;
        let exempt = first(["NO_PROXY", "no_proxy"]).map(|(_, exempt)| exempt).unwrap_or_default();
        let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
        let port = server.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        if is_exempt(host, port, &exempt) {
            return None;
        }
        let proxy = Proxy::parse(&url).or_else(|| match url.contains("://") {
            true => None,
            false => Proxy::parse(&format!("http://{url}")),
        });
        if proxy.is_none() {
            ignored(name);
        }
        proxy
    }
}

/// Returns true if `NO_PROXY` exempts a server. Servers on this host always are exempt.
fn is_exempt(host: &str, port: u16, exempt: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exempt.split(',').any(|entry| matches(&host, address, port, &entry.trim().to_ascii_lowercase()))
}

/// Returns true if an entry of `NO_PROXY` matches this host.
fn matches(host: &str, address: Option<IpAddr>, port: u16, entry: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(net) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| net.contains(&address));
    }
    let (name, wanted) = split_port(entry);
    if name.is_empty() || wanted.is_some_and(|wanted| *wanted != *port.to_string()) {
        return false;
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(exempt) = bare.parse::<IpAddr>() {
        return address == Some(exempt.to_canonical());
    }
    let name = name.strip_prefix('*').filter(|name| name.starts_with('.')).unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

/// Splits off a port at the end, if there is one: `::1` has none.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (entry, None),
    }
}

/// Decodes the percent-encoding of a URL.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(server: &str, environment: &[(&str, &str)]) -> Option<String> {
        let value = |name: &str| {
            let set = environment.iter().find(|(variable, _)| *variable == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        let proxy = Proxy::from_environment(&server.parse().unwrap(), value, |_| ());
        proxy.map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_environment_is_read_as_go_does() {
        for (server, environment, expected) in [
            (
                "https://10.0.0.1:6443",
                &[("HTTPS_PROXY", "http://p:3128")][..],
                Some("http://p:3128"),
            ),
            ("https://10.0.0.1:6443", &[("https_proxy", "http://p:3128")], Some("http://p:3128")),
            (
                "https://10.0.0.1",
                &[("HTTPS_PROXY", ""), ("https_proxy", "p:1")],
                Some("http://p:1"),
            ),
            (
                "https://10.0.0.1",
                &[("HTTPS_PROXY", "http://first:1"), ("https_proxy", "http://second:1")],
                Some("http://first:1"),
            ),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "p")], Some("http://p:80")),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "https://p")], Some("https://p:443")),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "socks5://p")], Some("socks5://p:1080")),
            (
                "https://10.0.0.1",
                &[("HTTPS_PROXY", "http://[fd00::1]:8")],
                Some("http://[fd00::1]:8"),
            ),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "ftp://p")], None),
            ("https://10.0.0.1", &[("HTTP_PROXY", "http://p:1")], None),
            ("http://10.0.0.1", &[("HTTPS_PROXY", "http://p:1")], None),
            ("http://10.0.0.1", &[("HTTP_PROXY", "http://p:1")], Some("http://p:1")),
            ("http://10.0.0.1", &[("http_proxy", "http://p:1")], Some("http://p:1")),
            ("https://10.0.0.1", &[("ALL_PROXY", "http://p:1")], None),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "http://me:pw@p:1/x?y")], Some("http://p:1")),
            ("https://127.0.0.1:6443", &[("HTTPS_PROXY", "http://p:1")], None),
            ("https://127.9.9.9:6443", &[("HTTPS_PROXY", "http://p:1")], None),
            ("https://[::1]:6443", &[("HTTPS_PROXY", "http://p:1")], None),
            ("https://localhost:6443", &[("HTTPS_PROXY", "http://p:1")], None),
            ("https://10.0.0.1", &[("HTTPS_PROXY", "http://p:1"), ("no_proxy", "10.0.0.1")], None),
        ] {
            assert_eq!(
                chosen(server, environment).as_deref(),
                expected,
                "{server} {environment:?}"
            );
        }
    }

    #[test]
    fn no_proxy_is_read_as_go_does() {
        for (server, exempt, is_exempt) in [
            ("10.0.0.1:6443", "10.0.0.1", true),
            ("10.0.0.1:6443", "10.0.0.1:6443", true),
            ("10.0.0.1:6443", "10.0.0.1:443", false),
            ("10.0.0.1", "10.0.0.1:443", true),
            ("10.0.0.1", "10.0.0.0/8", true),
            ("10.0.0.1", "10.0.0.9/8", true),
            ("11.0.0.1", "10.0.0.0/8", false),
            ("10.0.0.1", "10.", false),
            ("10.0.0.1", "a, 10.0.0.1 ,b", true),
            ("10.0.0.1", "*", true),
            ("10.0.0.1", "a,*", true),
            ("[fd00::1]:6443", "fd00::1", true),
            ("[fd00::1]:6443", "[fd00::1]:6443", true),
            ("[fd00::1]:6443", "[fd00::1]:1", false),
            ("[fd00::1]:6443", "fd00::/8", true),
            ("[fd00::1]:6443", "10.0.0.0/8", false),
            ("[::ffff:10.0.0.1]", "10.0.0.1", true),
            ("api.example.com", "example.com", true),
            ("api.example.com", ".example.com", true),
            ("api.example.com", "*.example.com", true),
            ("example.com", "example.com", true),
            ("example.com", ".example.com", false),
            ("example.com", "*.example.com", false),
            ("badexample.com", "example.com", false),
            ("api.example.com", "EXAMPLE.com", true),
            ("API.example.com", "example.com", true),
            ("api.example.com:6443", "example.com:6443", true),
            ("api.example.com:6443", "example.com:443", false),
            ("api.example.com", "api.example", false),
            ("api.example.com", "", false),
            ("api.example.com", ",:443, ,", false),
            ("api.example.com", "com", true),
        ] {
            let environment = [("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", exempt)];
            let server = format!("https://{server}");
            let direct = chosen(&server, &environment).is_none();
            assert_eq!(direct, is_exempt, "{server} with NO_PROXY={exempt}");
        }
    }

    #[test]
    fn credentials_are_decoded_and_not_shown() {
        let credentials = |url: &str| {
            let proxy = Proxy::parse(url).unwrap();
            assert!(!format!("{proxy} {proxy:?}").contains("secret"), "{proxy:?}");
            proxy.credentials.map(|Credentials { user, password }| (user, password))
        };
        for (url, user, password) in [
            ("http://me:secret@p:1", "me", "secret"),
            ("http://me@p:1", "me", ""),
            ("http://me%40home:secret%3A%2F@p:1", "me@home", "secret:/"),
            ("http://me:se:cret@p:1", "me", "se:cret"),
            ("http://me:secret@@p:1", "me", "secret@"),
        ] {
            assert_eq!(credentials(url), Some((user.to_owned(), password.to_owned())), "{url}");
        }
        assert_eq!(credentials("http://p:1"), None);
        for url in ["p:1", "http://", "http://:1", "ftp://p", "http://a b", "http://%zz@p"] {
            assert_eq!(Proxy::parse(url), None, "{url}");
        }
    }
}
