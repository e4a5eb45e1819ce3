//! The architecture lint: the shape that docs/ARCHITECTURE.md draws, as something that can fail.
//!
//! Two kinds of rules. [`imports`] holds the crates to the table of who may import whom, by what Cargo itself
//! says of the workspace. [`source`] reads the sources as tokens, so that a word in a comment or a string is no
//! finding. Exceptions stand in [`allowed`], each with its reason; one that excuses nothing any more is a
//! finding too.

pub mod allowed;
pub mod imports;
pub mod source;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name, as [`allowed`] uses it.
    pub rule: &'static str,
    /// Path below the workspace, or a crate's name.
    pub place: String,
    /// Line, from 1; 0 where the finding has none.
    pub line: usize,
    /// What is wrong and what to do instead.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: [{}] {}", self.place, self.rule, self.text),
            line => write!(f, "{}:{line}: [{}] {}", self.place, self.rule, self.text),
        }
    }
}

/// Every Rust source of the workspace at `root`, as (crate's name, path below `root`, text), sorted by path.
pub fn sources(root: &Path) -> io::Result<Vec<(String, PathBuf, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join("crates"))? {
        let dir = entry?.path();
        let Some(short) = dir.file_name().and_then(|name| name.to_str()) else { continue };
        let name = if short == "tarn" { short.to_string() } else { format!("tarn-{short}") };
        let mut files = Vec::new();
        rust_files(&dir, &mut files)?;
        for file in files {
            let text = std::fs::read_to_string(&file)?;
            let below = file.strip_prefix(root).unwrap_or(&file).to_path_buf();
            found.push((name.clone(), below, text));
        }
    }
    found.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(found)
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                rust_files(&path, found)?;
            }
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
