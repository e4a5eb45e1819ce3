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
    let named = words.iter().take_while(|w| w.parse::<f64>().is_err()).count();
    let (names, numbers) = words.split_at(named);
    let seconds = |w: &String| {
        let value = w.parse::<f64>().ok().filter(|v| (0.1..=86_400.0).contains(v));
        value
            .map(Duration::from_secs_f64)
            .ok_or_else(|| usage(format!("'{w}': an interval is 0.1 to 86400 seconds")))
    };
    let number =
        |w: &String| w.parse::<u64>().map_err(|_| usage(format!("'{w}': a count is a whole number")));
    if let Some(extra) = numbers.get(2) {
        return Err(usage(format!("'{extra}': nothing follows INTERVAL and COUNT")));
    }
    Ok(Plan {
        names: names.to_vec(),
        interval: numbers.first().map(seconds).transpose()?,
        count: numbers.get(1).map(number).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn names_come_before_numbers() {
        let all = plan(&words("tank archive 0.5 3")).unwrap();
        assert_eq!(all.names, ["tank", "archive"]);
        assert_eq!((all.interval, all.count), (Some(Duration::from_millis(500)), Some(3)));
        assert_eq!(plan(&[]).unwrap(), Plan { names: vec![], interval: None, count: None });
        for bad in ["5 tank", "1 2 3", "0", "1 x", "1 2.5"] {
            assert!(plan(&words(bad)).is_err(), "{bad}");
        }
    }
}
