//! Metrics over HTTP, for Prometheus.
//!
//! Whoever reaches the port may ask, so what is answered holds nothing secret, and nothing that comes in is trusted: a
//! connection asks once, has little time and little room, and there are never many of them.

use super::CONTENT_TYPE;
use crate::error::usage;
use anyhow::{Context, Result};
use http::header::{ALLOW, CONTENT_TYPE as KIND};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// A connection takes no longer, whatever comes of it.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Connections at once; others wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// Bytes of a request's head that are taken.
const HEAD_MAX: usize = 16 << 10;

/// `PORT`, on the loopback, or `ADDRESS:PORT`.
pub fn address(text: &str) -> Result<SocketAddr> {
    let port = text.parse::<u16>().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    port.or_else(|_| text.parse()).ok().filter(|address| address.port() != 0).ok_or_else(|| {
        usage(format!(
            "metrics={text}: write metrics=PORT for this host alone, or metrics=ADDRESS:PORT, as in metrics=0.0.0.0:9123"
        ))
    })
}

/// What a scrape is answered with; `None` when there is nothing to tell any more.
type Page = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A port that answers scrapes, until it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    pub async fn open(
        address: SocketAddr,
        page: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Result<Endpoint> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.with_context(|| format!("cannot serve metrics at {address}: name another port"))?;
        let address = listener.local_addr()?;
        Ok(Endpoint { address, task: tokio::spawn(accept(listener, Arc::new(page))) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, page: Page) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // Ends with this task, and so with the endpoint.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // It is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = page.clone();
                connections.spawn(async move {
                    let _ = tokio::time::timeout(CONNECTION_TIME, serve(stream, page)).await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::debug!("metrics: cannot accept: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

/// One connection, one request.
async fn serve(stream: TcpStream, page: Page) {
    let service = service_fn(move |request: Request<Incoming>| {
        let page = page.clone();
        async move { Ok::<_, Infallible>(answer(&request, &page)) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.keep_alive(false).max_buf_size(HEAD_MAX);
    if let Err(e) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("metrics: {e}");
    }
}

fn answer(request: &Request<Incoming>, page: &Page) -> Response<Full<Bytes>> {
    let said = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
        response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {}
        "/" => return said(StatusCode::OK, "the metrics are at /metrics\n"),
        _ => return said(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
    let Some(text) = page() else {
        return said(StatusCode::SERVICE_UNAVAILABLE, "the pool is being closed\n");
    };
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(KIND, http::HeaderValue::from_static(CONTENT_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn addresses_are_the_hosts_own_unless_told_otherwise() {
        assert_eq!(address("9123").unwrap(), "127.0.0.1:9123".parse().unwrap());
        assert_eq!(address("0.0.0.0:9123").unwrap(), "0.0.0.0:9123".parse().unwrap());
        assert_eq!(address("[::1]:80").unwrap(), "[::1]:80".parse().unwrap());
        for wrong in ["", "0", "70000", "host:80", "127.0.0.1", "127.0.0.1:0", ":9123"] {
            assert!(address(wrong).unwrap_err().to_string().contains("metrics=PORT"), "{wrong}");
        }
    }

    async fn said(endpoint: &Endpoint, words: &[u8]) -> String {
        let mut stream = TcpStream::connect(endpoint.address()).await.unwrap();
        stream.write_all(words).await.unwrap();
        let mut answer = Vec::new();
        // Who was sent garbage may reset the connection.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn opened() -> Endpoint {
        Endpoint::open("127.0.0.1:0".parse().unwrap(), || Some("page\n".into())).await.unwrap()
    }

    #[tokio::test]
    async fn a_scrape_gets_the_page_and_nothing_else_does() {
        let endpoint = opened().await;
        let page = said(&endpoint, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(
            page.starts_with("HTTP/1.1 200") && page.contains(CONTENT_TYPE) && page.ends_with("\r\npage\n")
        );
        for (words, status) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], "200"),
            (b"GET /etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", "405"),
            (b"\x16\x03\x01\x02\x00 garbage\r\n\r\n", "400"),
            (&[b'A'; 64 << 10], "400"),
        ] {
            let answer = said(&endpoint, words).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")) || status == "400",
                "{status}: {answer}"
            );
            assert!(!answer.contains("page\n"));
        }
        let taken = Endpoint::open(endpoint.address(), || None).await;
        assert!(taken.err().unwrap().to_string().contains("name another port"));
    }

    #[tokio::test]
    async fn those_who_say_nothing_do_not_keep_others_out_for_long() {
        let endpoint = opened().await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect(endpoint.address()).await.unwrap());
        }
        let asked = said(&endpoint, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        let page = tokio::time::timeout(3 * CONNECTION_TIME, asked).await.unwrap();
        assert!(page.ends_with("page\n"), "{page}");
    }
}
