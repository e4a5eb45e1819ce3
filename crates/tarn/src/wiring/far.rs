//! The way between hosts: TCP, with TLS where certificates are given.

use crate::address::Address;
use crate::control::Certificates;
use anyhow::{Context, Result, bail};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tarn_proto::wire::{Dial, Incoming, Outward};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A peer greets within this time.
const GREETING: Duration = Duration::from_secs(10);

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || -> Result<Vec<_>, tokio_rustls::rustls::pki_types::pem::Error> {
        CertificateDer::pem_file_iter(path)?.collect()
    };
    let chain = read().with_context(|| format!("cannot read certificates from {}", path.display()))?;
    if chain.is_empty() {
        bail!("{} holds no certificate in PEM form", path.display());
    }
    Ok(chain)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path)
        .with_context(|| format!("cannot read a private key from {}", path.display()))
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(path)? {
        roots.add(certificate).with_context(|| path.display().to_string())?;
    }
    Ok(roots)
}

impl Certificates {
    /// Both or none of certificate and key.
    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(path)) => Ok(Some((chain(cert)?, key(path)?))),
            (None, None) => Ok(None),
            _ => bail!("a certificate and its key go together: give both or none"),
        }
    }

    fn connector(&self) -> Result<Option<TlsConnector>> {
        let Some(ca) = &self.ca else {
            return match self.identity()? {
                Some(_) => bail!("TLS needs ca=FILE: the certificates that the server's is checked by"),
                None => Ok(None),
            };
        };
        let config = ClientConfig::builder().with_root_certificates(roots(ca)?);
        let config = match self.identity()? {
            Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
            None => config.with_no_client_auth(),
        };
        Ok(Some(TlsConnector::from(Arc::new(config))))
    }

    fn acceptor(&self) -> Result<Option<TlsAcceptor>> {
        let Some((chain, key)) = self.identity()? else {
            return match self.ca {
                Some(_) => {
                    bail!("clients are asked for certificates only over TLS: give --cert and --key too")
                }
                None => Ok(None),
            };
        };
        let config = ServerConfig::builder();
        let config = match &self.ca {
            Some(ca) => {
                config.with_client_cert_verifier(WebPkiClientVerifier::builder(Arc::new(roots(ca)?)).build()?)
            }
            None => config.with_no_client_auth(),
        };
        Ok(Some(TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key)?))))
    }
}

/// A way to a server.
pub struct Tcp {
    address: Address,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Tcp {
    pub fn new(address: Address, certificates: &Certificates) -> Result<Tcp> {
        let name = || {
            ServerName::try_from(address.bare_host().to_string())
                .with_context(|| format!("'{}' is no name that a certificate can have", address.host))
        };
        let tls = match certificates.connector()? {
            Some(connector) => Some((connector, name()?)),
            None => None,
        };
        Ok(Tcp { address, tls })
    }
}

fn apart<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static>(stream: S) -> (Incoming, Outward) {
    let (reader, writer) = tokio::io::split(stream);
    (Box::new(reader), Box::new(writer))
}

fn halves(stream: TcpStream) -> (Incoming, Outward) {
    let (reader, writer) = stream.into_split();
    (Box::new(reader), Box::new(writer))
}

#[async_trait::async_trait]
impl Dial for Tcp {
    fn name(&self) -> String {
        self.address.to_string()
    }

    async fn dial(&self) -> io::Result<(Incoming, Outward)> {
        let stream = TcpStream::connect((self.address.bare_host(), self.address.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some((tls, name)) => Ok(apart(tls.connect(name.clone(), stream).await?)),
            None => Ok(halves(stream)),
        }
    }
}

/// Where clients come in.
pub struct Door {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    pub at: SocketAddr,
}

impl Door {
    pub async fn open(at: SocketAddr, certificates: &Certificates) -> Result<Door> {
        let tls = certificates.acceptor()?;
        let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"))?;
        let at = listener.local_addr()?;
        Ok(Door { listener, tls, at })
    }

    /// Whether anybody who reaches the port is let in.
    pub fn is_open_to_all(&self, certificates: &Certificates) -> bool {
        !self.at.ip().is_loopback() && (self.tls.is_none() || certificates.ca.is_none())
    }

    /// The next caller, who is not greeted yet.
    pub async fn next(&self) -> io::Result<(Caller, SocketAddr)> {
        let (stream, peer) = self.listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok((Caller { stream, tls: self.tls.clone() }, peer))
    }
}

/// Somebody at the door.
pub struct Caller {
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
}

impl Caller {
    pub async fn greet(self) -> io::Result<(Incoming, Outward)> {
        let Some(tls) = self.tls else { return Ok(halves(self.stream)) };
        let greeted = tokio::time::timeout(GREETING, tls.accept(self.stream)).await;
        Ok(apart(greeted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??))
    }
}
