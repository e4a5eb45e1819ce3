//! Sizes and numbers as zfs reads and shows them.

/// Reads `128K`, `1M`, `1.5G`, `10GiB` or a plain number of bytes. Units are powers of 1024.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let value = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
    (number.contains('.') && shift > 0 && value < u64::MAX as f64).then_some(value as u64)
}

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// At most five characters, as zfs shows counts: `7`, `128K`, `1.50G`, `15.2T`.
pub fn count(n: u64) -> String {
    scaled(n, 1024)
}

/// [`count`] with a `B` where no unit shows: `0B`, `512B`, `24K`.
pub fn bytes(n: u64) -> String {
    if n < 1024 { format!("{n}B") } else { scaled(n, 1024) }
}

fn scaled(n: u64, base: u64) -> String {
    let mut unit = 0;
    let mut divisor = 1u64;
    while n / divisor >= base && unit + 1 < UNITS.len() {
        divisor *= base;
        unit += 1;
    }
    if n.is_multiple_of(divisor) {
        return format!("{}{}", n / divisor, UNITS[unit]);
    }
    let value = n as f64 / divisor as f64;
    for places in [2, 1] {
        let text = format!("{value:.places$}{}", UNITS[unit]);
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{value:.0}{}", UNITS[unit])
}

/// A price in billionths, to the cent where there are cents: `0`, `0.0004`, `12.34`.
pub fn money(n: u64) -> String {
    match n {
        0 => "0".into(),
        1..10_000_000 => {
            format!("{:.6}", n as f64 / 1e9).trim_end_matches('0').trim_end_matches('.').to_string()
        }
        _ => format!("{:.2}", n as f64 / 1e9),
    }
}

/// A latency in nanoseconds as `zpool iostat -l` shows it: `950ns`, `12us`, `3ms`, `1.50s`; `-` for none.
pub fn nanoseconds(n: u64) -> String {
    match n {
        0 => "-".into(),
        1..1_000 => format!("{n}ns"),
        1_000..1_000_000 => format!("{}us", n / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", n / 1_000_000),
        _ => format!("{:.2}s", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_form() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("128K", 128 << 10),
            ("128k", 128 << 10),
            ("1M", 1 << 20),
            ("1.5G", 3 << 29),
            ("10GiB", 10 << 30),
            ("2TB", 2 << 40),
            (" 7b ", 7),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "1.5", "-1", "1Q", "1 000", "99999E", "1..5K", "nan", "1e3"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_as_zfs_shows_them() {
        for (n, text) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (128 << 10, "128K"),
            (3 << 29, "1.50G"),
            ((15 << 30) + (1 << 28), "15.2G"),
            ((999 << 20) + 1, "999M"),
            (1 << 60, "1E"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(count(7), "7");
        assert_eq!(count(1536), "1.50K");
        assert_eq!(
            (money(0), money(400_000), money(12_344_000_000)),
            ("0".into(), "0.0004".into(), "12.34".into())
        );
        assert_eq!(nanoseconds(0), "-");
        assert_eq!(nanoseconds(1_500_000), "1ms");
        assert_eq!(nanoseconds(2_500_000_000), "2.50s");
    }
}
