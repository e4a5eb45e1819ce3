//! Values: what each kind of property takes, and its canonical form.

use crate::size;

/// What a property may be set to.
#[derive(Debug)]
pub enum Kind {
    /// Nothing: it reports.
    Report,
    Choice(&'static [&'static str]),
    /// Bytes.
    PowerOfTwo {
        min: u64,
        max: u64,
    },
    /// Bytes, or `none`.
    SizeOrNone,
    Compression,
    Checksum,
    /// An absolute path, `none` or `legacy`.
    Mountpoint,
    Text,
}

/// Smallest limit of a size, in bytes.
const QUOTA_MIN: u64 = 4096;
/// Longest value of a property, in bytes.
const TEXT_MAX: usize = 1024;

/// `value` in the form that is kept; the error says what is allowed.
pub fn canonical(kind: &Kind, value: &str) -> Result<String, String> {
    let lower = value.to_ascii_lowercase();
    match kind {
        Kind::Report => Err("it is read-only".into()),
        Kind::Choice(allowed) => match allowed.contains(&lower.as_str()) {
            true => Ok(lower),
            false => Err(format!("use one of {}", allowed.join(", "))),
        },
        Kind::PowerOfTwo { min, max } => match size::parse(value) {
            Some(n) if n.is_power_of_two() && (*min..=*max).contains(&n) => Ok(n.to_string()),
            _ => Err(format!("use a power of two from {} to {}", size::count(*min), size::count(*max))),
        },
        Kind::SizeOrNone => match size::parse(value) {
            Some(0) => Ok("none".into()),
            // So few bytes hold nothing: the unit was forgotten.
            Some(n) if n >= QUOTA_MIN => Ok(n.to_string()),
            None if lower == "none" => Ok(lower),
            Some(n) if value.trim() == n.to_string() => {
                Err(format!("use a size with its unit, as in {n}G, or none"))
            }
            Some(_) => Err(format!("use at least {}, or none", size::count(QUOTA_MIN))),
            _ => Err("use a size with its unit, such as 10G, or none".into()),
        },
        Kind::Compression => compression(&lower),
        Kind::Checksum => match lower.as_str() {
            "on" | "xxh3" => Ok("xxh3".into()),
            "blake3" => Ok(lower),
            _ => Err("use on, xxh3 or blake3".into()),
        },
        Kind::Mountpoint => mountpoint(value),
        Kind::Text if value.len() > TEXT_MAX => Err(format!("use at most {TEXT_MAX} bytes")),
        Kind::Text if value.chars().any(char::is_control) => Err("use printable characters".into()),
        Kind::Text => Ok(value.to_string()),
    }
}

fn compression(value: &str) -> Result<String, String> {
    match value {
        "on" | "lz4" => return Ok("lz4".into()),
        "off" | "zstd" => return Ok(value.into()),
        _ => {}
    }
    match value.strip_prefix("zstd-").and_then(|level| level.parse::<u8>().ok()) {
        Some(level @ 1..=19) => Ok(format!("zstd-{level}")),
        _ => Err("use on, off, lz4, zstd, or zstd-1 to zstd-19".into()),
    }
}

fn mountpoint(value: &str) -> Result<String, String> {
    if value == "none" || value == "legacy" {
        return Ok(value.into());
    }
    let odd = |part: &str| part == "." || part == "..";
    if !value.starts_with('/') || value.split('/').any(odd) || value.chars().any(char::is_control) {
        return Err("use an absolute path, none or legacy".into());
    }
    let parts: Vec<&str> = value.split('/').filter(|p| !p.is_empty()).collect();
    Ok(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountpoints_are_tidied() {
        assert_eq!(canonical(&Kind::Mountpoint, "/srv//data/").as_deref(), Ok("/srv/data"));
        assert_eq!(canonical(&Kind::Mountpoint, "/").as_deref(), Ok("/"));
        assert!(canonical(&Kind::Mountpoint, "/a/../b").is_err());
    }
}
