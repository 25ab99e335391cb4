//! Verifies a server's certificate against a configured name (`tls-server-name`).

use hyper_rustls::FixedServerNameResolver;

/// Verifies certificates against this name instead of the host in the URL.
pub(super) fn server_name(name: &str) -> Option<FixedServerNameResolver> {
    name.to_owned().try_into().ok().map(FixedServerNameResolver::new)
}
