//! Exceptions to the rules, each with its reason. They name a file and a rule, so that the same mistake
//! elsewhere is still found; one that no longer excuses anything is reported, so that the list stays true.

use crate::Finding;

/// (rule, path below the workspace or crate, reason).
type Exception = (&'static str, &'static str, &'static str);

/// The exceptions of this workspace.
pub const EXCEPTIONS: &[Exception] = &[
    ("errno", "crates/bucket/src/local/mod.rs", "speaks to the operating system's files; no errno leaves it"),
    ("errno", "crates/pool/src/authority/host.rs", "tells the operating system's lock held from failed"),
    (
        "clock",
        "crates/bucket/src/local/mod.rs",
        "files that a crash left are judged by the file system's times",
    ),
    ("clock", "crates/bucket/src/raw.rs", "measures the machine"),
    (
        "clock",
        "crates/pool/src/authority/mod.rs",
        "how often the authority is asked; decides nothing that is stored",
    ),
    (
        "clock",
        "crates/pool/src/space.rs",
        "how old a figure of free space is; decides nothing that is stored",
    ),
    ("errno", "crates/tarn/src/node/takeover.rs", "asks the operating system whether a mountpoint is dead"),
    ("errno", "crates/tarn/src/verbs/mount.rs", "asks the operating system whether a mountpoint is dead"),
    ("clock", "crates/tarn/src/control/client.rs", "how long a verb waits for a daemon"),
    ("clock", "crates/tarn/src/node/mod.rs", "how long the pool has been open, for rates"),
    ("clock", "crates/tarn/src/progress.rs", "how often a progress bar is drawn"),
    ("clock", "crates/tarn/src/verbs/bench/meter.rs", "measures the machine"),
    ("clock", "crates/tarn/src/verbs/pool/iostat.rs", "the interval between two reports"),
    ("clock", "crates/tarn/src/verbs/stats/mod.rs", "the interval between two reports"),
    ("clock", "crates/pool/src/text.rs", "dates that people read, in the history and in labels"),
];

/// Takes out of `found` what an exception covers and adds the exceptions that covered nothing.
pub fn apply(exceptions: &[Exception], found: Vec<Finding>) -> Vec<Finding> {
    let covers =
        |(rule, place, _): &Exception, finding: &Finding| *rule == finding.rule && *place == finding.place;
    let stale = exceptions.iter().filter(|exception| !found.iter().any(|finding| covers(exception, finding)));
    let stale: Vec<Finding> = stale
        .map(|(rule, place, reason)| Finding {
            rule: "allowed",
            place: place.to_string(),
            line: 0,
            text: format!("exception to {rule:?} ({reason}) excuses nothing any more: remove it"),
        })
        .collect();
    let kept =
        found.into_iter().filter(|finding| !exceptions.iter().any(|exception| covers(exception, finding)));
    kept.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_covers_its_file_and_rule_alone_and_goes_stale() {
        let finding =
            |place: &str| Finding { rule: "clock", place: place.to_string(), line: 3, text: String::new() };
        let exceptions: &[Exception] = &[("clock", "a.rs", "why"), ("errno", "a.rs", "why")];
        let left = apply(exceptions, vec![finding("a.rs"), finding("b.rs")]);
        assert_eq!(
            left.iter().map(|f| (f.rule, f.place.as_str())).collect::<Vec<_>>(),
            vec![("clock", "b.rs"), ("allowed", "a.rs")]
        );
    }
}
