//! Many deletes in one request: `multipart/mixed`, each part an HTTP request of its own, and each of the answer's an
//! answer.

use super::request::{Client, Place};
use crate::web::answer::Answer;
use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use std::fmt::Write;

/// Stands between the requests: nothing in them looks like it, as names are encoded.
const BOUNDARY: &str = "===tarn-batch===";

/// What became of one request. The order is the server's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub status: u16,
    /// JSON, as a rule.
    pub body: &'a str,
}

impl Part<'_> {
    pub fn failed(&self) -> bool {
        !(200..300).contains(&self.status)
    }
}

/// Deletes the objects of these names. Gives the answer's body, and the boundary between its parts.
pub(super) async fn send(client: &Client, names: &[String]) -> Result<(String, String), Answer> {
    let mut body = String::with_capacity(names.len() * 256);
    for (number, name) in names.iter().enumerate() {
        let place = client.terms.path(&Place::Object(name), &client.bucket);
        let _ = write!(
            body,
            "--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <tarn+{number}>\r\n\r\n\
             DELETE {place} HTTP/1.1\r\nContent-Length: 0\r\n\r\n\r\n"
        );
    }
    let _ = write!(body, "--{BOUNDARY}--\r\n");
    let kind = [(CONTENT_TYPE, format!("multipart/mixed; boundary=\"{BOUNDARY}\""))];
    let response = client.send(Method::POST, Place::Batch, &kind, vec![Bytes::from(body)]).await?;
    let boundary = response.header(&CONTENT_TYPE).and_then(boundary_of).unwrap_or_default();
    Ok((response.text().await?, boundary))
}

/// The boundary that a content type names.
fn boundary_of(kind: &str) -> Option<String> {
    let (_, boundary) = kind.split_once("boundary=")?;
    let boundary = boundary.split(';').next()?.trim();
    Some(boundary.trim_matches('"').to_string())
}

/// The parts of an answer; those that cannot be read are left out.
pub(super) fn parse<'a>(boundary: &str, text: &'a str) -> Vec<Part<'a>> {
    if boundary.is_empty() {
        return Vec::new();
    }
    let marker = format!("--{boundary}");
    text.split(marker.as_str()).skip(1).filter_map(part).collect()
}

/// A part: headers of its own, an empty line, and an answer of HTTP.
fn part(text: &str) -> Option<Part<'_>> {
    let (_, answer) = text.split_once("\r\n\r\n")?;
    let (line, rest) = answer.trim_start().split_once("\r\n")?;
    let status = line.strip_prefix("HTTP/")?.split(' ').nth(1)?;
    let status = status.parse().ok().filter(|status| (100..1000).contains(status))?;
    let body = rest.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    Some(Part { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_answer_are_told_apart() {
        assert_eq!(boundary_of("multipart/mixed; boundary=\"x y\"").unwrap(), "x y");
        assert_eq!(boundary_of("multipart/mixed; boundary=b_1; charset=utf-8").unwrap(), "b_1");
        let head = "Content-Type: application/http\r\nContent-ID: <response-tarn+0>\r\n\r\n";
        let error = r#"{"error":{"message":"no"}}"#;
        let text = format!(
            "--b\r\n{head}HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n\r\n\
             --b\r\n{head}HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\r\n{error}\r\n--b--\r\n"
        );
        let parts = parse("b", &text);
        assert_eq!(parts, [Part { status: 204, body: "" }, Part { status: 403, body: error }]);
        assert!(!parts[0].failed() && parts[1].failed());
        assert_eq!(parse("b", &text[..90]), []);
        assert_eq!(parse("", &text), []);
    }
}
