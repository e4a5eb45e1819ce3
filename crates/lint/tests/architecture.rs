//! Holds this workspace to its architecture.

use std::path::Path;
use std::process::Command;
use tarn_lint::{allowed, imports, source, sources};

#[test]
fn the_workspace_keeps_to_its_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(&root)
        .output()
        .expect("cargo metadata runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata = serde_json::from_slice(&metadata.stdout).expect("cargo metadata prints JSON");

    let mut found = imports::check(&metadata);
    let files = sources(&root).expect("the sources can be read");
    assert!(files.len() > 10, "the sources were not found");
    for (name, path, text) in &files {
        found.extend(source::check(name, path, text));
    }
    let found = allowed::apply(allowed::EXCEPTIONS, found);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}
