//! What an answer of Google Cloud Storage means, by its reasons.

use crate::web::answer::{About, Answer};
use crate::{Error, Operation};

pub(super) fn about<'a>(url: &'a str, endpoint: &'a str, operation: Operation, key: &'a str) -> About<'a> {
    let rights = "grant the role Storage Object User on the bucket";
    About { url, endpoint, operation, key, bucket: "bucket", rights }
}

/// The error that an answer becomes.
pub(super) fn explain(about: &About<'_>, answer: &Answer) -> Error {
    let (url, place) = (about.url, about.place());
    if answer.no_credentials {
        return Error::Credentials(format!(
            "{url}: no credentials: set GOOGLE_APPLICATION_CREDENTIALS to a service account's key, or run `gcloud \
             auth application-default login` (the machine has no service account)"
        ));
    }
    if answer.of_token {
        return answer.by_token(about, "renew them, and check this host's clock");
    }
    let writes = matches!(about.operation, Operation::Put | Operation::Create | Operation::List);
    let no_bucket = answer.message.contains("bucket does not exist");
    match (answer.code.as_str(), answer.status) {
        // What is written cannot be what is missing.
        (_, Some(404)) if writes || no_bucket => about.no_such_bucket(),
        (_, Some(404)) => Error::NotFound(place),
        (_, Some(412)) if about.operation == Operation::Create => Error::Exists(place),
        ("retentionPolicyNotMet" | "objectUnderActiveHold", _) => Error::Denied(format!(
            "{place}: {}: use a bucket without it",
            answer.because("a policy forbids to change or delete objects")
        )),
        ("rateLimitExceeded" | "userRateLimitExceeded", _) => {
            Error::Busy(format!("{place}: {}", answer.in_its_words()))
        }
        // 4xx by number, but only of the moment.
        ("conflict", _) | (_, Some(409 | 410)) => Error::Io(format!("{place}: {}", answer.in_its_words())),
        ("quotaExceeded", _) => Error::NoSpace(place),
        ("userProjectMissing", _) => Error::Config(format!(
            "{url}: {}: add ?billing_project=PROJECT to the name",
            answer.because("the requester pays for this bucket")
        )),
        (_, Some(401)) => about.not_accepted(answer, "renew them, and check GOOGLE_APPLICATION_CREDENTIALS"),
        _ => answer.by_status(about),
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers;
    use super::*;

    #[test]
    fn answers_become_errors_by_what_can_be_done() {
        use Operation::{Create, Delete, Get, List, Put};
        for (operation, status, reason, class) in [
            (Get, 404, "notFound", "NotFound"),
            (Delete, 404, "notFound", "NotFound"),
            (Put, 404, "notFound", "Config"),
            (List, 404, "notFound", "Config"),
            (Create, 412, "conditionNotMet", "Exists"),
            (Put, 401, "authError", "Credentials"),
            (Put, 403, "forbidden", "Denied"),
            (Delete, 403, "retentionPolicyNotMet", "Denied"),
            (Put, 429, "rateLimitExceeded", "Busy"),
            (Put, 403, "rateLimitExceeded", "Busy"),
            (Put, 409, "conflict", "Io"),
            (Get, 503, "backendError", "Busy"),
            (Put, 400, "invalid", "Config"),
            (Put, 400, "userProjectMissing", "Config"),
        ] {
            let text = format!(
                r#"{{"error":{{"code":{status},"message":"in\n words","errors":[{{"reason":"{reason}"}}]}}}}"#
            );
            let about = about("gs://b", "http://h", operation, "k");
            let error = explain(&about, &answers::error(status, &text));
            assert!(format!("{error:?}").starts_with(class), "{status} {reason}: {error:?}");
            assert!(!error.to_string().contains('\n') && error.to_string().starts_with("gs://b"), "{error}");
        }
    }
}
