//! Verbs that report again and again: names, then seconds between reports, then how many.

use crate::error::usage;
use anyhow::Result;
use std::time::Duration;

/// What the words after the flags say.
#[derive(Debug, PartialEq)]
pub struct Plan {
    pub names: Vec<String>,
    pub interval: Option<Duration>,
    pub count: Option<u64>,
}

pub fn plan(words: &[String]) -> Result<Plan> {
    let named = words.iter().take_while(|w| !is_number(w)).count();
    let (names, numbers) = words.split_at(named);
    let interval = |w: &String| seconds(w, "an interval is", Duration::from_secs(86_400));
    let number = |w: &String| {
        let number = w.parse::<u64>().ok().filter(|n| *n > 0);
        number.ok_or_else(|| usage(format!("'{w}': a count is a whole number, 1 or more")))
    };
    if let Some(extra) = numbers.get(2) {
        return Err(usage(format!("'{extra}': nothing follows INTERVAL and COUNT")));
    }
    Ok(Plan {
        names: names.to_vec(),
        interval: numbers.first().map(interval).transpose()?,
        count: numbers.get(1).map(number).transpose()?,
    })
}

/// Names of pools and datasets begin with a letter, whatever else Rust takes for a number.
fn is_number(word: &str) -> bool {
    !word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.parse::<f64>().is_ok()
}

/// Reads a time in seconds, of a tenth at least; `what` begins the sentence that says what it may be.
pub fn seconds(word: &str, what: &str, longest: Duration) -> Result<Duration> {
    let value = word.parse::<f64>().ok().filter(|v| (0.1..=longest.as_secs_f64()).contains(v));
    let bounds = || usage(format!("'{word}': {what} 0.1 to {} seconds", longest.as_secs()));
    value.map(Duration::from_secs_f64).ok_or_else(bounds)
}

/// Fails when a number stands where a name must.
pub fn check_named(words: &[String]) -> Result<()> {
    match words.first() {
        Some(first) if is_number(first) => {
            Err(usage(format!("'{first}' is a number: name a pool, dataset or directory before it")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn a_number_is_no_name() {
        assert_eq!(plan(&words("nan inf 5")).unwrap().names, ["nan", "inf"]);
        assert!(check_named(&words("0")).unwrap_err().to_string().contains("before it"));
        assert!(check_named(&words("e5 0")).is_ok() && check_named(&[]).is_ok());
    }

    #[test]
    fn names_come_before_numbers() {
        let all = plan(&words("tank archive 0.5 3")).unwrap();
        assert_eq!(all.names, ["tank", "archive"]);
        assert_eq!((all.interval, all.count), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!(plan(&[]).unwrap(), Plan { names: vec![], interval: None, count: None });
        for bad in ["5 tank", "1 2 3", "0", "1 x", "1 2.5", "1 0", "nan 0.05"] {
            assert!(plan(&words(bad)).is_err(), "{bad}");
        }
    }
}
