//! The simulation's program: one seed, a range of seeds over all cores, or the tests.
//!
//! - `sim seed N [--ops M] [--sabotage NAME]` runs one seed in this process and prints its counts and its trace's hash;
//!   with `TARN_SIM_TRACE=1` in the environment every operation and request too.
//! - `sim seeds FROM..TO [--jobs N]` runs each in a process of its own, as many at once as there are cores.
//! - anything else runs the tests whose names contain it; nothing runs all.

mod chance;
mod disk;
mod files;
mod host;
mod names;
mod run;
mod stack;
mod suite;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name: &str| option(name).and_then(|word| word.parse::<u64>().ok());
    let good = match (words.first().map(String::as_str), words.get(1)) {
        (Some("seed"), Some(seed)) => {
            let Ok(seed) = seed.parse() else { return usage() };
            suite::one(
                seed,
                number("--ops").unwrap_or(suite::OPERATIONS),
                option("--sabotage").map(String::as_str),
            )
        }
        (Some("seeds"), Some(range)) => {
            let Some((from, to)) = range.split_once("..") else { return usage() };
            let (Ok(from), Ok(to)) = (from.parse(), to.parse()) else { return usage() };
            suite::many(from..to, number("--jobs"))
        }
        _ => suite::tests(words.iter().find(|word| !word.starts_with('-')).map(String::as_str)),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("sim seed N [--ops M] [--sabotage NAME] | sim seeds FROM..TO [--jobs N] | sim [TEST]");
    ExitCode::FAILURE
}
