//! GETs of objects over plain HTTP, whose bodies go from the socket to where they stay.
//!
//! An HTTP library reads bodies into memory of its own, from which they are copied once more. Here the kernel copies
//! them into the [`Buffer`] that becomes the body, as much at a time as has arrived. Whatever else there is to
//! HTTP stays with the library: other requests, TLS, proxies, and answers in a shape that is not expected here,
//! whose request is made again.

use super::Counted;
use crate::buffer::Buffer;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use nix::{setsockopt_impl, sockopt_impl};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientConfigKey, ClientOptions};
use parking_lot::Mutex;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Bytes of an answer's head that are taken at the most.
const HEAD_MAX: usize = 16 << 10;
/// Bytes that are asked for at first: what comes of the body with the head is copied.
const HEAD_READ: usize = 2 << 10;
/// Headers of an answer at the most.
const HEADERS_MAX: usize = 64;
/// What asks GCS for an object's bytes, and not for what it knows of it.
const MEDIA: &str = "alt=media";
/// A longer body is left to the library, which gives it piece by piece.
const BODY_MAX: usize = 32 << 20;
/// Bytes of a body that the kernel collects before it says that there are some: each time costs a wake-up here, and an
/// acknowledgement that wakes who sends.
const COLLECTED: usize = 256 << 10;

sockopt_impl!(
    /// How many bytes must be there before a socket is readable.
    Collects,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    usize
);

/// Makes clients that read objects directly and leave the rest to the library's.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub counted: Counted,
    pub connect_limit: Duration,
    pub request_limit: Duration,
    pub idle_limit: Duration,
    pub idle_connections: usize,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let library = self.counted.client(ReqwestConnector::default().connect(options)?);
        if proxy_is_set() || options.get_config_value(&ClientConfigKey::ProxyUrl).is_some() {
            return Ok(library);
        }
        Ok(HttpClient::new(Client { library, limits: self.clone(), idle: Mutex::default() }))
    }
}

/// Whether the library would send requests elsewhere than to the host that they name.
fn proxy_is_set() -> bool {
    ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].iter().any(|name| std::env::var_os(name).is_some())
}

#[derive(Debug)]
struct Client {
    library: HttpClient,
    limits: Connector,
    /// Connections that wait for a request, by the host and port that they lead to; the last used is last.
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    host: String,
    since: Instant,
    stream: TcpStream,
}

/// Why a request was not answered here.
enum Trouble {
    /// The connection is gone, and no byte of an answer came.
    Stale(io::Error),
    /// The answer is for the library to read.
    Foreign,
    Failed(HttpError),
}

#[async_trait::async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let direct = request.method() == Method::GET
            && request.uri().scheme_str() == Some("http")
            && request.uri().query().is_none_or(|query| query == MEDIA)
            && request.body().is_empty();
        let Some(host) = request.uri().authority().filter(|_| direct).map(|host| host.as_str().to_string())
        else {
            return self.library.execute(request).await;
        };
        let answer = timeout(self.limits.request_limit, self.get(&host, &request));
        match answer.await.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))? {
            Some(answer) => answer,
            None => self.library.execute(request).await,
        }
    }
}

impl Client {
    /// The answer, or `None` where the library must ask.
    async fn get(&self, host: &str, request: &HttpRequest) -> Option<Result<HttpResponse, HttpError>> {
        let head = head_of(host, request);
        // A connection that the server closed while it was idle says so only when it is used.
        loop {
            let (stream, fresh) = match self.idle_to(host) {
                Some(stream) => (stream, false),
                None => match self.connect(host).await {
                    Ok(stream) => (stream, true),
                    Err(error) => return Some(Err(error)),
                },
            };
            let exchanged = self.exchange(stream, host, &head).await;
            match &exchanged {
                Err(Trouble::Stale(_)) if !fresh => {}
                Ok(response) => self.limits.counted.exchanged(request, Some(response)),
                Err(_) => self.limits.counted.exchanged(request, None),
            }
            match exchanged {
                Ok(response) => return Some(Ok(response)),
                Err(Trouble::Stale(_)) if !fresh => {}
                Err(Trouble::Stale(error)) => return Some(Err(broken(error))),
                Err(Trouble::Failed(error)) => return Some(Err(error)),
                Err(Trouble::Foreign) => return None,
            }
        }
    }

    fn idle_to(&self, host: &str) -> Option<TcpStream> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| connection.since.elapsed() < self.limits.idle_limit);
        let at = idle.iter().rposition(|connection| connection.host == host)?;
        Some(idle.remove(at).stream)
    }

    fn keep(&self, host: &str, stream: TcpStream) {
        let mut idle = self.idle.lock();
        if idle.len() < self.limits.idle_connections {
            idle.push(Idle { host: host.to_string(), since: Instant::now(), stream });
        }
    }

    async fn connect(&self, host: &str) -> Result<TcpStream, HttpError> {
        let refused = |error: io::Error| HttpError::new(HttpErrorKind::Connect, error);
        let with_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = if with_port { host.to_string() } else { format!("{host}:80") };
        let connected = timeout(self.limits.connect_limit, TcpStream::connect(place)).await;
        let stream =
            connected.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        Ok(stream)
    }

    async fn exchange(
        &self,
        mut stream: TcpStream,
        host: &str,
        head: &[u8],
    ) -> Result<HttpResponse, Trouble> {
        stream.write_all(head).await.map_err(Trouble::Stale)?;
        let mut start = Vec::with_capacity(HEAD_READ);
        let answer = loop {
            if let Some(answer) = Head::parse(&start)? {
                break answer;
            }
            let read = match stream.read_buf(&mut start).await {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                other => other,
            };
            match read {
                Ok(_) if start.len() > HEAD_MAX => return Err(Trouble::Foreign),
                Ok(_) => {}
                Err(error) if start.is_empty() => return Err(Trouble::Stale(error)),
                Err(error) => return Err(Trouble::Failed(broken(error))),
            }
        };
        let early = &start[answer.head..];
        if early.len() > answer.body {
            return Err(Trouble::Foreign);
        }
        let mut body = Buffer::new(answer.body);
        body.as_mut()[..early.len()].copy_from_slice(early);
        let mut filled = early.len();
        let mut collects = 1;
        while filled < answer.body {
            let left = answer.body - filled;
            if left >= COLLECTED || collects > left {
                collects = collect(&stream, left.min(COLLECTED), collects);
            }
            match stream.read(&mut body.as_mut()[filled..]).await {
                Ok(0) => return Err(Trouble::Failed(cut_short(filled, answer.body))),
                Ok(read) => filled += read,
                Err(error) => return Err(Trouble::Failed(broken(error))),
            }
        }
        if answer.stays && collect(&stream, 1, collects) == 1 {
            self.keep(host, stream);
        }
        Ok(answer.response(body.freeze()))
    }
}

/// Lets the kernel collect so many bytes rather than `now`; gives how many it collects.
fn collect(stream: &TcpStream, bytes: usize, now: usize) -> usize {
    match bytes == now || nix::sys::socket::setsockopt(stream, Collects, &bytes).is_ok() {
        true => bytes,
        false => now,
    }
}

fn broken(error: io::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}

fn cut_short(got: usize, of: usize) -> HttpError {
    broken(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the body ended at {got} of {of} bytes")))
}

fn head_of(host: &str, request: &HttpRequest) -> Vec<u8> {
    let place = request.uri().path_and_query().map_or("/", |place| place.as_str());
    let mut head = format!("GET {place} HTTP/1.1\r\n").into_bytes();
    let named = request.headers().contains_key(HOST);
    let host = (!named).then(|| (HOST.as_str(), host.as_bytes()));
    let given = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    for (name, value) in host.into_iter().chain(given) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// What the first lines of an answer say.
struct Head {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Bytes of the head, and of the body after it.
    head: usize,
    body: usize,
    /// Whether the server takes another request on the connection.
    stays: bool,
}

impl Head {
    /// `None` where more bytes are needed.
    fn parse(bytes: &[u8]) -> Result<Option<Head>, Trouble> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut fields);
        let head = match parsed.parse(bytes).map_err(|_| Trouble::Foreign)? {
            httparse::Status::Complete(head) => head,
            httparse::Status::Partial => return Ok(None),
        };
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Trouble::Foreign)?;
        let mut headers = Vec::with_capacity(parsed.headers.len());
        for field in parsed.headers.iter() {
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Trouble::Foreign)?;
            let value = HeaderValue::from_bytes(field.value).map_err(|_| Trouble::Foreign)?;
            headers.push((name, value));
        }
        let all = |name: HeaderName| headers.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value);
        let mut lengths = all(CONTENT_LENGTH);
        let length = lengths.next().and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        let body = length.filter(|length| *length <= BODY_MAX).ok_or(Trouble::Foreign)?;
        // Redirects are followed by the library; a body that is coded, or given twice a length, is not plain.
        let plain = lengths.next().is_none() && all(TRANSFER_ENCODING).next().is_none();
        if !plain || status.is_informational() || status.is_redirection() || status == StatusCode::NO_CONTENT
        {
            return Err(Trouble::Foreign);
        }
        let closes = all(CONNECTION).any(|value| !value.as_bytes().eq_ignore_ascii_case(b"keep-alive"));
        let stays = parsed.version == Some(1) && !closes;
        Ok(Some(Head { status, headers, head, body, stays }))
    }

    fn response(self, body: Bytes) -> HttpResponse {
        let mut response = HttpResponse::new(body.into());
        *response.status_mut() = self.status;
        *response.version_mut() = Version::HTTP_11;
        response.headers_mut().extend(self.headers);
        response
    }
}

/// Whether an answer's head can be read; for tests that give it what no server would.
pub(crate) fn parses_head(bytes: &[u8]) -> bool {
    match Head::parse(bytes) {
        Ok(Some(head)) => {
            assert!(head.head <= bytes.len() && head.body <= BODY_MAX);
            head.response(Bytes::new()).status().as_u16() >= 200
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpRequestBody;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::net::TcpListener;

    /// A server that answers each request of each connection with the next text of `script`, and closes a
    /// connection after a text that ends in `!`, which is not sent.
    async fn server(script: &[&str]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let answers: Vec<_> = script.iter().map(|text| text.to_string()).collect();
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Relaxed);
                tokio::spawn(serve(stream, answers.clone()));
            }
        });
        (host, connections)
    }

    async fn serve(mut stream: TcpStream, answers: Arc<Mutex<std::vec::IntoIter<String>>>) {
        let mut request = Vec::new();
        while stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            request.clear();
            let Some(answer) = answers.lock().next() else { return };
            stream.write_all(answer.trim_end_matches('!').as_bytes()).await.unwrap();
            if answer.ends_with('!') {
                return;
            }
        }
    }

    fn client() -> HttpClient {
        let second = Duration::from_secs(1);
        let connector = Connector {
            counted: Counted::nothing(),
            connect_limit: second,
            request_limit: second,
            idle_limit: second,
            idle_connections: 4,
        };
        connector.connect(&ClientOptions::new().with_allow_http(true)).unwrap()
    }

    async fn get(client: &HttpClient, host: &str) -> Result<(u16, String), HttpErrorKind> {
        get_with(client, host, "").await
    }

    async fn get_with(client: &HttpClient, host: &str, query: &str) -> Result<(u16, String), HttpErrorKind> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("http://{host}/bucket/key{query}").parse().unwrap();
        let response = client.execute(request).await.map_err(|error| error.kind())?;
        let status = response.status().as_u16();
        let body = response.into_body().bytes().await.map_err(|error| error.kind())?;
        Ok((status, String::from_utf8(body.to_vec()).unwrap()))
    }

    fn answer(body: &str) -> String {
        format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_replaced_when_the_server_closed_it() {
        let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
        let (host, connections) =
            server(&[&answer("one"), missing, &format!("{}!", answer("two")), &answer("three")]).await;
        let client = client();
        for (wanted, connected) in
            [((206, "one"), 1), ((404, "none"), 1), ((206, "two"), 1), ((206, "three"), 2)]
        {
            let (status, body) = get(&client, &host).await.unwrap();
            assert_eq!(((status, body.as_str()), connections.load(Relaxed)), (wanted, connected));
        }
    }

    #[tokio::test]
    async fn a_body_that_is_cut_short_or_does_not_come_is_an_error() {
        let short = "HTTP/1.1 206 Partial Content\r\nContent-Length: 9\r\n\r\nhalf";
        let (host, _) = server(&[&format!("{short}!"), short, "!", "!"]).await;
        let client = client();
        assert_eq!(get(&client, &host).await, Err(HttpErrorKind::Interrupted));
        assert_eq!(get(&client, &host).await, Err(HttpErrorKind::Timeout));
        assert_eq!(get(&client, &host).await, Err(HttpErrorKind::Interrupted));
        assert_eq!(get(&client, "127.0.0.1:1").await, Err(HttpErrorKind::Connect));
    }

    #[tokio::test]
    async fn of_requests_with_words_behind_them_only_media_are_read_directly() {
        let (host, connections) = server(&[&answer("one"), &answer("two"), &answer("three")]).await;
        let client = client();
        for (query, wanted, connected) in
            [("", "one", 1), ("?alt=media", "two", 1), ("?list-type=2", "three", 2)]
        {
            assert_eq!(get_with(&client, &host, query).await, Ok((206, wanted.into())));
            assert_eq!(connections.load(Relaxed), connected, "{query}");
        }
    }

    #[tokio::test]
    async fn what_is_not_plain_is_left_to_the_library() {
        let chunked =
            "HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n";
        let (host, connections) =
            server(&[chunked, chunked, &format!("{}more", answer("x")), &answer("four")]).await;
        let client = client();
        for _ in 0..2 {
            assert_eq!(get(&client, &host).await, Ok((206, "four".into())));
        }
        assert!(connections.load(Relaxed) >= 2);
    }
}
