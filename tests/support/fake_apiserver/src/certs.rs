//! Certificates for the time of a test: an authority, and what it signs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// A pair of keys, private and public, in PEM, without any certificate.
pub(crate) fn key_pair() -> Result<(String, String)> {
    let pair = KeyPair::generate()?;
    Ok((pair.serialize_pem(), pair.public_key_pem()))
}

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, which nobody knows yet.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?);
        Ok(Self { issuer: issuer.context("cannot make a certificate authority")? })
    }

    /// Its certificate in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server on this machine, by all names it may be called.
    pub fn server(&self) -> Result<Identity> {
        let mut params = CertificateParams::new(["localhost".to_owned(), "kubernetes".to_owned()])?;
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
            params.subject_alt_names.push(SanType::IpAddress(ip));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, "kube-apiserver")
    }

    /// A certificate for a client.
    pub fn client(&self, name: &str) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, name)
    }

    fn sign(&self, mut params: CertificateParams, name: &str) -> Result<Identity> {
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.with_context(|| format!("no certificate for {name}"))?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// TLS as a server with a certificate of this authority, which also knows its clients.
    pub(crate) fn acceptor(&self, http2: bool) -> Result<TlsAcceptor> {
        let Identity { certificate, key } = self.server()?;
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::clone(self.issuer.der()))?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)?;
        let protocols = http2.then(|| b"h2".to_vec()).into_iter();
        config.alpn_protocols = protocols.chain([b"http/1.1".to_vec()]).collect();
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
