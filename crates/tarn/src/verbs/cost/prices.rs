//! List prices, from `prices.json` or a file of the same shape.

use crate::error::usage;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;
use tarn_base::{Provider, TallyStats};

const BUILT_IN: &str = include_str!("../../../prices.json");
/// A file of prices is no longer, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Prices of each provider, in units of its currency.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// When they are said to have held.
    pub date: String,
    pub currency: String,
    s3: List,
    gcs: List,
    azure: List,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub what: String,
    pub source: String,
    put_1000: f64,
    list_1000: f64,
    get_1000: f64,
    head_1000: f64,
    delete_1000: f64,
    stored_gib_month: f64,
    internet_gib: f64,
}

impl List {
    fn numbers(&self) -> [f64; 7] {
        [
            self.put_1000,
            self.list_1000,
            self.get_1000,
            self.head_1000,
            self.delete_1000,
            self.stored_gib_month,
            self.internet_gib,
        ]
    }
}

/// In billionths of the currency's unit.
fn nanos(price: f64) -> u64 {
    (price * 1e9).round() as u64
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

impl Prices {
    /// Those that Tarn knows, as they would stand in a file.
    pub fn built_in() -> &'static str {
        BUILT_IN
    }

    /// From the file, or those that Tarn knows.
    pub fn read(file: Option<&Path>) -> Result<Prices> {
        let Some(path) = file else { return Prices::parse(BUILT_IN) };
        let read = || -> Result<Prices> {
            if std::fs::metadata(path)?.len() > FILE_MAX {
                return Err(usage("it is too long to be a list of prices"));
            }
            Prices::parse(&std::fs::read_to_string(path)?)
        };
        read().with_context(|| format!("the prices in {} cannot be used", path.display()))
    }

    fn parse(text: &str) -> Result<Prices> {
        let prices: Prices = serde_json::from_str(text)?;
        for list in [&prices.s3, &prices.gcs, &prices.azure] {
            if !list.numbers().iter().all(|price| (0.0..1e6).contains(price)) {
                return Err(usage(format!("a price of {} is not a price", list.what)));
            }
        }
        Ok(prices)
    }

    pub fn of(&self, provider: Provider) -> Option<&List> {
        match provider {
            Provider::S3 => Some(&self.s3),
            Provider::Gcs => Some(&self.gcs),
            Provider::Azure => Some(&self.azure),
            Provider::Local => None,
        }
    }

    /// What requests cost, in billionths; with what is received over the internet if `internet`.
    pub fn requests(&self, provider: Provider, tally: &TallyStats, internet: bool) -> u64 {
        let Some(list) = self.of(provider) else { return 0 };
        let counts = [tally.put, tally.list, tally.get, tally.head, tally.delete];
        let requests: f64 =
            counts.iter().zip(list.numbers()).map(|(count, price)| *count as f64 * price / 1000.0).sum();
        let transfer = if internet { gib(tally.received_bytes) * list.internet_gib } else { 0.0 };
        nanos(requests + transfer)
    }

    /// What it costs to keep so many bytes for a month, in billionths.
    pub fn month(&self, provider: Provider, bytes: u64) -> u64 {
        self.of(provider).map_or(0, |list| nanos(gib(bytes) * list.stored_gib_month))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_add_up_by_hand() {
        let prices = Prices::read(None).unwrap();
        let tally = TallyStats {
            put: 1000,
            list: 1000,
            get: 10_000,
            head: 0,
            delete: 5000,
            sent_bytes: 1 << 40,
            received_bytes: 2 << 30,
        };
        // A cent for the writes and listings, 0.4 cents for the reads, 18 for two GiB over the internet.
        assert_eq!(prices.requests(Provider::S3, &tally, false), 14_000_000);
        assert_eq!(prices.requests(Provider::S3, &tally, true), 194_000_000);
        assert_eq!(prices.requests(Provider::Local, &tally, true), 0);
        assert_eq!(prices.month(Provider::Gcs, 50 << 30), 1_000_000_000);
        assert_eq!(prices.month(Provider::Local, 50 << 30), 0);
    }

    #[test]
    fn wrong_prices_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prices");
        for text in [
            "",
            "[]",
            &BUILT_IN.replace("0.023", "-1"),
            &BUILT_IN.replace("0.09", "1e9"),
            &BUILT_IN.replace("\"s3\"", "\"s4\""),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", Prices::read(Some(&file)).unwrap_err());
            assert!(error.contains("prices in"), "{error}");
        }
        std::fs::write(&file, BUILT_IN.replace("0.005", "5")).unwrap();
        let tally = TallyStats { put: 1, ..TallyStats::default() };
        assert_eq!(Prices::read(Some(&file)).unwrap().requests(Provider::Azure, &tally, false), 5_000_000);
        assert!(Prices::read(Some(&dir.path().join("nothing"))).is_err());
    }
}
