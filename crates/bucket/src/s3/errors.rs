//! What an S3 store's answer means, by its codes.

use crate::web::answer::{About, Answer};
use crate::{Error, Operation};

const RIGHTS: &str = "check the bucket's policy, and add requester_pays=true where the requester pays";

pub(super) fn about<'a>(url: &'a str, endpoint: &'a str, operation: Operation, key: &'a str) -> About<'a> {
    About { url, endpoint, operation, key, bucket: "bucket", rights: RIGHTS }
}

/// The error that an answer becomes.
pub(super) fn explain(about: &About<'_>, answer: &Answer) -> Error {
    let (url, place) = (about.url, about.place());
    if answer.no_credentials {
        // Whatever instance metadata has answered: it is not the store's answer.
        return Error::Credentials(format!(
            "{url}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fill ~/.aws/credentials \
             (instance metadata has none)"
        ));
    }
    match answer.code.as_str() {
        "NoSuchBucket" => about.no_such_bucket(),
        "InvalidBucketName" => {
            let why = answer.in_its_words();
            Error::Config(format!("{url}: {why}: correct the bucket's name"))
        }
        "NoSuchKey" | "NotFound" => Error::NotFound(place),
        // The last is versitygw's, with status 404.
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "InvalidToken"
        | "InvalidClientTokenId"
        | "XAdminUserNotFound" => {
            let check = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials";
            about.not_accepted(answer, check)
        }
        "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException" => {
            let why = answer.because("the credentials have expired");
            Error::Credentials(format!("{url}: {why}: renew them where Tarn found them"))
        }
        "RequestTimeTooSkewed" => about.wrong_clock(answer),
        "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException" => {
            wrong_region(url, answer)
        }
        "QuotaExceeded" | "InsufficientStorage" | "XMinioStorageFull" | "InsufficientCapacity" => {
            Error::NoSpace(place)
        }
        "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "Throttling" => {
            Error::Busy(format!("{place}: {}", answer.in_its_words()))
        }
        // 4xx by number, but only of the moment; the last two of bytes that were damaged on their way.
        "RequestTimeout"
        | "OperationAborted"
        | "ConditionalRequestConflict"
        | "NoSuchUpload"
        | "BadDigest"
        | "XAmzContentChecksumMismatch" => Error::Io(format!("{place}: {}", answer.in_its_words())),
        _ if answer.redirected || matches!(answer.status, Some(301 | 307 | 308)) => wrong_region(url, answer),
        _ => answer.by_status(about),
    }
}

fn wrong_region(url: &str, answer: &Answer) -> Error {
    let words = if answer.message.is_empty() { String::new() } else { format!(" ({})", answer.message) };
    Error::Config(format!(
        "{url}: the bucket is in another region{words}: add ?region=NAME or set AWS_REGION"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(operation: Operation, status: u16, body: &str) -> Error {
        let text = format!("Server returned non-2xx status code: {status} Some Words: {body}");
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        explain(&about("s3://b", "http://h", operation, "k"), &Answer::of(&error))
    }

    fn xml(code: &str) -> String {
        format!(
            "<Error><Code>{code}</Code><Message>in\n words</Message><StringToSign>hush</StringToSign></Error>"
        )
    }

    #[test]
    fn answers_become_errors_by_what_can_be_done() {
        use Operation::{Create, Get, List, Put};
        type Is = fn(&Error) -> bool;
        let (config, denied, io): (Is, Is, Is) = (
            |e| matches!(e, Error::Config(_)),
            |e| matches!(e, Error::Denied(_)),
            |e| matches!(e, Error::Io(_)),
        );
        let (credentials, busy): (Is, Is) =
            (|e| matches!(e, Error::Credentials(_)), |e| matches!(e, Error::Busy(_)));
        let (not_found, exists, no_space): (Is, Is, Is) = (
            |e| matches!(e, Error::NotFound(_)),
            |e| matches!(e, Error::Exists(_)),
            |e| matches!(e, Error::NoSpace(_)),
        );
        let cases: [(Operation, u16, &str, Is); 24] = [
            (Get, 404, "NoSuchKey", not_found),
            (Get, 404, "", not_found),
            (Get, 404, "NoSuchBucket", config),
            (Get, 404, "NoSuchSomething", config),
            (Get, 404, "XAdminUserNotFound", credentials),
            (Put, 404, "NoSuchUpload", io),
            (List, 404, "", config),
            (Put, 403, "AccessDenied", denied),
            (Put, 403, "SignatureDoesNotMatch", credentials),
            (Put, 400, "ExpiredToken", credentials),
            (Put, 403, "RequestTimeTooSkewed", credentials),
            (Get, 301, "PermanentRedirect", config),
            (Get, 400, "AuthorizationHeaderMalformed", config),
            (Create, 412, "PreconditionFailed", exists),
            (Create, 409, "ConditionalRequestConflict", io),
            (Put, 507, "", no_space),
            (Put, 403, "QuotaExceeded", no_space),
            (Get, 503, "SlowDown", busy),
            (Get, 500, "InternalError", io),
            (Get, 429, "", busy),
            (Put, 400, "RequestTimeout", io),
            (Put, 400, "BadDigest", io),
            (Put, 400, "InvalidArgument", config),
            (Put, 501, "NotImplemented", config),
        ];
        for (operation, status, code, is) in cases {
            let body = if code.is_empty() { String::new() } else { xml(code) };
            let error = explained(operation, status, &body);
            let text = error.to_string();
            assert!(is(&error), "{status} {code}: {error:?}");
            assert!(!text.contains('\n') && !text.contains("hush") && text.starts_with("s3://b"), "{text}");
        }
    }
}
