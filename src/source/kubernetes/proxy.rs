//! Selects the proxy to the server like client-go: the kubeconfig's `proxy-url`, otherwise the
//! environment's. hyper-util has the rules of curl; here are those of Go that it lacks.

use std::fmt;
use std::net::IpAddr;
use std::sync::Once;

use hyper::Uri;
use hyper::http::uri::Authority;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// A proxy. Shown without its credentials.
#[derive(Clone)]
pub(super) struct HttpProxy(pub(super) Intercept);

impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0.uri().to_string();
        f.write_str(url.trim_end_matches('/'))
    }
}

impl HttpProxy {
    /// Returns the proxy at a URL for `server`. `None` for an invalid URL or an unknown scheme.
    pub(super) fn at(url: &str, server: &Uri) -> Option<HttpProxy> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let authority = rest.split(['/', '?', '#']).next()?;
        // At the last one: hyper-util would take the rest of a password for the host, which is shown.
        let (user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let place: Authority = place.parse().ok()?;
        let port = match place.port_u16() {
            Some(port) => format!(":{port}"),
            None if place.host() != place.as_str() => return None,
            None if scheme.starts_with("socks5") => ":1080".to_owned(),
            None => String::new(),
        };
        let user = match user {
            "" => String::new(),
            user => format!("{}@", user.replace('@', "%40")),
        };
        let url = format!("{scheme}://{user}{}{port}", place.host());
        let proxy = Matcher::builder().all(url).build().intercept(server)?;
        let is_known = !proxy.uri().scheme_str()?.starts_with("socks4");
        (is_known && !proxy.uri().host()?.is_empty()).then_some(HttpProxy(proxy))
    }

    /// Returns the environment's proxy for `server`.
    pub(super) fn from_environment(
        server: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<HttpProxy> {
        static TOLD: Once = Once::new();
        let first = |names: [&'static str; 2]| {
            let set = |name| variable(name).filter(|value| !value.is_empty());
            names.into_iter().find_map(|name| Some((name, set(name)?)))
        };
        let (names, default_port) = match server.scheme_str() {
            Some("http") => (["HTTP_PROXY", "http_proxy"], 80),
            _ => (["HTTPS_PROXY", "https_proxy"], 443),
        };
        let (name, url) = first(names)?;
        let host = server.host()?.trim_matches(['[', ']']);
        let port = format!(":{}", server.port_u16().unwrap_or(default_port));
        let exempt = first(["NO_PROXY", "no_proxy"]).map(|(_, exempt)| exempt).unwrap_or_default();
        // An entry may have a port, or begin with `*.`.
        let exempt: Vec<&str> = exempt
            .split(',')
            .map(|entry| {
                let entry = entry.trim();
                let host = entry.strip_suffix(&*port).unwrap_or(entry);
                let host = if host.contains(':') && !host.ends_with(']') { entry } else { host };
                let host = host.trim_matches(['[', ']']);
                host.strip_prefix('*').filter(|host| !host.is_empty()).unwrap_or(host)
            })
            // A domain with a point before it is not the host of that name.
            .filter(|entry| entry.strip_prefix('.') != Some(host))
            .collect();
        let is_here = |address: IpAddr| address.to_canonical().is_loopback();
        let rules = Matcher::builder().all("http://any").no(exempt.join(",")).build();
        if host == "localhost"
            || host.parse().is_ok_and(is_here)
            || exempt.contains(&"*")
            || rules.intercept(server).is_none()
        {
            return None;
        }
        let proxy = HttpProxy::at(&url, server);
        if proxy.is_none() {
            TOLD.call_once(|| {
                tracing::warn!(
                    "{name} is ignored: it is not a URL such as http://proxy:3128 (http, https or socks5)"
                );
            });
        }
        proxy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest are hyper-util's rules.
    #[test]
    fn the_environment_is_read_as_go_does() {
        for (server, exempt, expected) in [
            ("https://10.0.0.1:6443", "", Some("http://p:1")),
            ("http://10.0.0.1", "", None),
            ("https://127.9.9.9:6443", "", None),
            ("https://[::1]:6443", "", None),
            ("https://localhost", "", None),
            ("https://10.0.0.1:6443", "a, 10.0.0.1:6443", None),
            ("https://10.0.0.1:6443", "10.0.0.1:443", Some("http://p:1")),
            ("https://10.0.0.1", "10.0.0.1:443", None),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", None),
            ("https://[fd00::1]:6443", "fd00::1", None),
            ("https://[fd00::443]", "fd00::443", None),
            ("https://api.example.com", "*.example.com", None),
            ("https://badexample.com", "*.example.com", Some("http://p:1")),
            ("https://example.com", "*.example.com", Some("http://p:1")),
            ("https://example.com", ".example.com", Some("http://p:1")),
            ("https://example.com", "example.com", None),
            ("https://api.example.com", ".example.com", None),
            ("https://10.0.0.1", "*", None),
        ] {
            let variable = |name: &str| match name {
                "https_proxy" => Some("p:1".to_owned()),
                "ALL_PROXY" => Some("http://other:1".to_owned()),
                "NO_PROXY" => Some(exempt.to_owned()),
                _ => None,
            };
            let proxy = HttpProxy::from_environment(&server.parse().unwrap(), variable);
            assert_eq!(proxy.map(|it| it.to_string()).as_deref(), expected, "{server} {exempt}");
        }
    }

    #[test]
    fn a_url_is_read_as_go_does_and_shown_without_credentials() {
        let server = Uri::from_static("https://10.0.0.1");
        for (url, expected) in [
            ("socks5://p", Some("socks5://p:1080")),
            ("socks5h://user:secret@p/", Some("socks5h://p:1080")),
            ("socks5://[fd00::1]", Some("socks5://[fd00::1]:1080")),
            ("socks5://p:1", Some("socks5://p:1")),
            ("socks5://p/x?y#z", Some("socks5://p:1080")),
            ("http://me:sec@ret@p:3128/", Some("http://p:3128")),
            ("http://me:sec/ret@p:3128", None),
            ("http://:3128", None),
            ("http://", None),
        ] {
            let proxy = HttpProxy::at(url, &server).map(|it| it.to_string());
            assert_eq!(proxy.as_deref(), expected, "{url}");
        }
        let HttpProxy(proxy) = HttpProxy::at("http://me:p@ss%3F@p", &server).unwrap();
        assert_eq!(proxy.basic_auth().unwrap(), "Basic bWU6cEBzcz8=", "me:p@ss?");
    }
}
