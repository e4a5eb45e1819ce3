//! What GCS answers in JSON.

use crate::web::answer::{Answer, in_a_line};
use serde::Deserialize;

/// An object, by its name in the bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
}

/// A piece of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub objects: Vec<Object>,
    pub next: Option<String>,
}

#[derive(Deserialize)]
struct ObjectJson {
    name: String,
    /// A number, as text.
    size: String,
    /// RFC 3339.
    updated: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageJson {
    #[serde(default)]
    items: Vec<ObjectJson>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct ErrorJson {
    error: ErrorBody,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: Vec<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(default)]
    reason: String,
}

impl ObjectJson {
    fn read(self) -> Option<Object> {
        let modified_ms = chrono::DateTime::parse_from_rfc3339(&self.updated).ok()?.timestamp_millis();
        Some(Object { name: self.name, size: self.size.parse().ok()?, modified_ms })
    }
}

/// What is known of an object.
pub(super) fn object(text: &str) -> Option<Object> {
    serde_json::from_str::<ObjectJson>(text).ok()?.read()
}

/// A piece of a listing. An object that is not told whole makes it none: a listing must not lack any.
pub(super) fn page(text: &str) -> Option<Page> {
    let page: PageJson = serde_json::from_str(text).ok()?;
    let objects = page.items.into_iter().map(ObjectJson::read).collect::<Option<Vec<_>>>()?;
    Some(Page { objects, next: page.next_page_token.filter(|token| !token.is_empty()) })
}

/// An answer that is an error: its reason, and its message. Those of media are plain text.
pub(super) fn error(status: u16, text: &str) -> Answer {
    match serde_json::from_str::<ErrorJson>(text) {
        Ok(ErrorJson { error }) => {
            let reason = error.errors.into_iter().next().map(|first| first.reason).unwrap_or_default();
            Answer::told(status, &in_a_line(&reason), &in_a_line(&error.message))
        }
        Err(_) if text.trim_start().starts_with(['<', '{']) => Answer::told(status, "", ""),
        Err(_) => Answer::told(status, "", &in_a_line(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_whole_or_not_at_all() {
        let item = r#"{"name":"a/ü","size":"12","updated":"1970-01-01T00:00:01.500Z"}"#;
        let found = Object { name: "a/ü".into(), size: 12, modified_ms: 1500 };
        let whole = page(&format!(r#"{{"items":[{item}],"nextPageToken":"t="}}"#)).unwrap();
        assert_eq!(whole, Page { objects: vec![found], next: Some("t=".into()) });
        assert_eq!(page("{}"), Some(Page { objects: vec![], next: None }));
        assert_eq!(page(&format!(r#"{{"items":[{item},{{"name":"b"}}]}}"#)), None);
        assert_eq!(page(&format!(r#"{{"items":[{}]}}"#, item.replace("12", "-1"))), None);
        assert_eq!(page("<html>"), None);
    }

    #[test]
    fn errors_are_read_in_either_form() {
        let text = r#"{"error":{"code":412,"message":"not\nmet","errors":[{"reason":"conditionNotMet"}]}}"#;
        let answer = error(412, text);
        assert_eq!((answer.code.as_str(), answer.message.as_str()), ("conditionNotMet", "not met"));
        assert_eq!(error(404, "No such object: b/k").message, "No such object: b/k");
        assert_eq!(error(502, "<html>gateway").message, "");
    }
}
