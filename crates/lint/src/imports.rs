//! Who may import whom. Names go down one way and bytes go down the other, so an import that points back up is
//! a mistake even where it compiles.

use crate::Finding;
use serde_json::Value;

/// Each crate and those of the workspace that it may import. `*` is all but the test crates.
const TABLE: &[(&str, &[&str])] = &[
    ("tarn-base", &[]),
    ("tarn-bucket", &["tarn-base"]),
    ("tarn-pool", &["tarn-bucket", "tarn-base"]),
    ("tarn-mdt", &["tarn-pool", "tarn-base"]),
    ("tarn-ldlm", &["tarn-base"]),
    ("tarn-proto", &["tarn-base"]),
    ("tarn-client", &["tarn-proto", "tarn-pool", "tarn-base"]),
    ("tarn-server", &["tarn-proto", "tarn-ldlm", "tarn-mdt", "tarn-pool", "tarn-base"]),
    ("tarn-access", &["tarn-client", "tarn-base"]),
    ("tarn", &["*"]),
    ("tarn-sim", &["*"]),
    ("tarn-lint", &[]),
    ("tarn-parsers", &["tarn-bucket", "tarn-pool", "tarn-mdt", "tarn-proto"]),
];

/// Crates that only tests may use: nobody imports them.
const TEST_ONLY: &[&str] = &["tarn-sim", "tarn-lint", "tarn-parsers"];

/// Licences whose terms fit a work under Apache-2.0. One of the alternatives that a crate offers is enough.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// True if `from` may import `to`; both are package names of the workspace.
pub fn may_import(from: &str, to: &str) -> bool {
    if TEST_ONLY.contains(&to) {
        return false;
    }
    TABLE.iter().any(|(name, allowed)| *name == from && (allowed.contains(&"*") || allowed.contains(&to)))
}

/// Checks the output of `cargo metadata --format-version 1`: imports within the workspace, `anyhow` below the
/// binary, and the licences of what comes from outside.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let mut found = Vec::new();
    let members = metadata["workspace_members"].as_array().map(Vec::as_slice).unwrap_or_default();
    for package in metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let name = package["name"].as_str().unwrap_or_default();
        if members.contains(&package["id"]) {
            check_member(name, package, &mut found);
        } else {
            check_licence(name, package, &mut found);
        }
    }
    found
}

fn check_member(name: &str, package: &Value, found: &mut Vec<Finding>) {
    if !TABLE.iter().any(|(known, _)| *known == name) {
        let text = "not in the table of imports: decide what it may import".to_string();
        found.push(Finding { rule: "imports", place: name.to_string(), line: 0, text });
    }
    for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let to = dependency["name"].as_str().unwrap_or_default();
        let is_ours = to.starts_with("tarn");
        if is_ours && !may_import(name, to) {
            let text = format!("must not import {to}");
            found.push(Finding { rule: "imports", place: name.to_string(), line: 0, text });
        }
        if to == "anyhow" && name != "tarn" {
            let text = "anyhow is for the binary; a library has errors of its own".to_string();
            found.push(Finding { rule: "imports", place: name.to_string(), line: 0, text });
        }
    }
}

fn check_licence(name: &str, package: &Value, found: &mut Vec<Finding>) {
    let licence = package["license"].as_str().unwrap_or("none named");
    if !licence_fits(licence) {
        let text = format!("licence {licence:?} is not on the list of permissive ones");
        found.push(Finding { rule: "licence", place: name.to_string(), line: 0, text });
    }
}

/// Reads an SPDX expression as alternatives (`OR`, and `/` in old crates) of conjunctions (`AND`). Parentheses
/// are flattened: that can only refuse too much.
fn licence_fits(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    if flat.contains(" AND ") && flat.contains(" OR ") {
        // Mixed: every conjunct must offer one that fits.
        return flat.split(" AND ").all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())));
    }
    flat.split(" OR ").any(|all| all.split(" AND ").all(|one| LICENCES.contains(&one.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(name: &str, dependency: &str) -> Value {
        json!({
            "workspace_members": ["x"],
            "packages": [{"id": "x", "name": name, "dependencies": [{"name": dependency, "path": "/somewhere"}]}],
        })
    }

    #[test]
    fn an_import_that_points_up_is_found() {
        for (from, to) in [
            ("tarn-client", "tarn-server"),
            ("tarn-client", "tarn-mdt"),
            ("tarn-pool", "tarn-mdt"),
            ("tarn-mdt", "tarn-proto"),
            ("tarn-base", "tarn-bucket"),
            ("tarn-access", "tarn-pool"),
            ("tarn", "tarn-lint"),
            ("tarn-new", "tarn-base"),
        ] {
            assert!(!check(&metadata(from, to)).is_empty(), "{from} -> {to}");
        }
    }

    #[test]
    fn an_import_by_the_table_is_fine() {
        for (from, to) in [("tarn-pool", "tarn-bucket"), ("tarn", "tarn-mdt"), ("tarn-client", "tarn-proto")]
        {
            assert_eq!(check(&metadata(from, to)), vec![], "{from} -> {to}");
        }
    }

    #[test]
    fn anyhow_below_the_binary_is_found() {
        let bad = json!({
            "workspace_members": ["x"],
            "packages": [{"id": "x", "name": "tarn-pool", "dependencies": [{"name": "anyhow", "path": null}]}],
        });
        assert_eq!(check(&bad).len(), 1);
    }

    #[test]
    fn licences_are_read() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(licence_fits(good), "{good}");
        }
        for bad in ["GPL-3.0", "AGPL-3.0-only", "MIT AND GPL-2.0", "CDDL-1.0", "none named"] {
            assert!(!licence_fits(bad), "{bad}");
        }
    }
}
