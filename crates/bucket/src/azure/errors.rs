//! What an answer of Azure Blob Storage means, by its codes.

use crate::web::answer::{About, Answer};
use crate::{Error, Operation};

/// Where credentials are looked for.
const PLACES: &str = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and its like";
const CHECK: &str = "check that AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_CLIENT_ID and its like are \
    valid and have not expired, and this host's clock";

pub(super) fn about<'a>(url: &'a str, endpoint: &'a str, operation: Operation, key: &'a str) -> About<'a> {
    let rights = "assign the role Storage Blob Data Contributor, and check the account's network rules";
    About { url, endpoint, operation, key, bucket: "container", rights }
}

/// The error that an answer becomes.
pub(super) fn explain(about: &About<'_>, answer: &Answer) -> Error {
    let (url, place) = (about.url, about.place());
    if answer.no_credentials {
        return Error::Credentials(format!(
            "{url}: no credentials: set {PLACES} (the machine has no managed identity)"
        ));
    }
    if answer.of_token {
        return answer.by_token(about, "check AZURE_TENANT_ID, AZURE_CLIENT_ID and its secret");
    }
    match answer.code.as_str() {
        "ContainerNotFound" => about.no_such_bucket(),
        "BlobNotFound" | "ResourceNotFound" => Error::NotFound(place),
        "BlobAlreadyExists" | "ConditionNotMet" | "TargetConditionNotMet"
            if about.operation == Operation::Create =>
        {
            Error::Exists(place)
        }
        _ if answer.skewed => about.wrong_clock(answer),
        "AuthenticationFailed" | "InvalidAuthenticationInfo" | "NoAuthenticationInformation" => {
            about.not_accepted(answer, CHECK)
        }
        // Azurite's code for it, which elsewhere says that a right is missing.
        "AuthorizationFailure" if answer.message.contains("failed to authenticate") => {
            about.not_accepted(answer, CHECK)
        }
        "AccountIsDisabled" | "ContainerDisabled" => {
            Error::Denied(format!("{url}: {}: enable it", answer.because("the account is disabled")))
        }
        "BlobImmutableDueToPolicy" | "BlobImmutableDueToLegalHold" => Error::Denied(format!(
            "{place}: {}: use a container without it",
            answer.because("a policy forbids to change or delete blobs")
        )),
        // 4xx by number, but only of the moment.
        "ContainerBeingDeleted"
        | "BlobBeingRehydrated"
        | "InvalidBlockList"
        | "InvalidBlobOrBlock"
        | "OperationTimedOut" => Error::Io(format!("{place}: {}", answer.in_its_words())),
        _ => answer.by_status(about),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(operation: Operation, status: u16, code: &str) -> Error {
        let body = format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>in\n words\nRequestId:1</Message>\
             <AuthenticationErrorDetail>hush</AuthenticationErrorDetail></Error>"
        );
        let text = format!("Server returned non-2xx status code: {status} Some Words: {body}");
        let error = object_store::Error::Generic { store: "MicrosoftAzure", source: text.into() };
        explain(&about("az://c?account=a", "http://h", operation, "k"), &Answer::of(&error))
    }

    #[test]
    fn answers_become_errors_by_what_can_be_done() {
        use Operation::{Create, Delete, Get, Head, List, Put};
        for (operation, status, code, class) in [
            (Get, 404, "BlobNotFound", "NotFound"),
            (Head, 404, "", "NotFound"),
            (Get, 404, "ContainerNotFound", "Config"),
            (List, 404, "ContainerNotFound", "Config"),
            (Create, 409, "BlobAlreadyExists", "Exists"),
            (Create, 412, "ConditionNotMet", "Exists"),
            (Put, 403, "AuthenticationFailed", "Credentials"),
            (Put, 403, "AuthorizationPermissionMismatch", "Denied"),
            (Delete, 409, "BlobImmutableDueToPolicy", "Denied"),
            (Put, 400, "InvalidBlockList", "Io"),
            (Get, 503, "ServerBusy", "Busy"),
            (Put, 500, "OperationTimedOut", "Io"),
            (Put, 409, "ContainerBeingDeleted", "Io"),
            (Put, 413, "RequestBodyTooLarge", "Config"),
        ] {
            let error = explained(operation, status, code);
            let text = error.to_string();
            assert!(format!("{error:?}").starts_with(class), "{status} {code}: {error:?}");
            assert!(!text.contains('\n') && !text.contains("hush") && text.starts_with("az://c"), "{text}");
        }
    }

    #[test]
    fn who_gives_tokens_is_not_taken_for_the_store() {
        let explained = |text: &str| {
            let error = object_store::Error::Generic { store: "MicrosoftAzure", source: text.into() };
            explain(&about("az://c", "http://h", Operation::Get, "k"), &Answer::of(&error))
        };
        let token = "Error performing token request: Error performing POST https://login/x";
        let refused =
            explained(&format!("{token}: Server returned non-2xx status code: 401 Unauthorized: hush"));
        assert!(
            matches!(&refused, Error::Credentials(text) if text.contains("AZURE_CLIENT_ID")),
            "{refused}"
        );
        assert!(!refused.to_string().contains("hush"), "{refused}");
        let gone = explained(&format!("{token} - HTTP error: error sending request"));
        assert!(matches!(&gone, Error::Io(text) if text.contains("no token could be fetched")), "{gone}");
        let machine =
            token.replace("https://login/x", "http://169.254.169.254/metadata/identity/oauth2/token");
        assert!(matches!(explained(&machine), Error::Credentials(text) if text.contains("no credentials")));
    }

    #[test]
    fn what_a_batch_says_of_one_key_is_understood() {
        let text = "Bulk delete request failed for key k: Forbidden (code: 403)";
        let error = object_store::Error::Generic { store: "MicrosoftAzure", source: text.into() };
        let about = about("az://c", "http://h", Operation::Delete, "k");
        assert!(matches!(explain(&about, &Answer::of(&error)), Error::Denied(_)));
    }
}
