//! Gives every parser its corpus, and then damage made of it.
//!
//! `TARN_PARSER_SECONDS` lets the damage go on for so long for each parser, with a seed for each round.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tarn_parsers::mutate::{Random, mutate};
use tarn_parsers::{Parser, all};

/// Cases for each parser, unless a time is given.
const CASES: usize = 20_000;
const LONGEST: usize = 64 << 10;
/// What a parser may take for an input of no length, in bytes: room to unpack one record of the largest size, twice.
const MEMORY: usize = 36 << 20;
/// And for each byte of input: decoded structures are larger than their bytes.
const MEMORY_EACH: usize = 256;

/// Counts what is allocated, to see the most that was at a time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests take turns, so that what one allocates is not counted as another's.
static TURN: Mutex<()> = Mutex::new(());

fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn corpus(parser: &Parser) -> Vec<Vec<u8>> {
    let dir = corpus_dir().join(parser.name);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}: every parser needs a corpus", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Runs one case, and says whether the parser accepted it. The error says what is wrong with the parser; the input is
/// left in a file then, ready to become part of the corpus.
fn case(parser: &Parser, input: &[u8]) -> Result<bool, String> {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let accepted = catch_unwind(AssertUnwindSafe(|| (parser.run)(input)));
    let most = MOST.load(Relaxed).saturating_sub(before);
    let allowed = MEMORY + MEMORY_EACH * input.len();
    match accepted {
        Ok(accepted) if most <= allowed => Ok(accepted),
        result => {
            let path = std::env::temp_dir().join(format!("{}-finding", parser.name));
            std::fs::write(&path, input).unwrap();
            let what = if result.is_err() { "panicked" } else { "took too much memory" };
            Err(format!("{} {what} ({most} bytes) on {}", parser.name, path.display()))
        }
    }
}

/// Lets every parser have its turn, whatever is wrong with others.
fn each(what: impl Fn(Parser, Vec<Vec<u8>>) -> Result<(), String>) {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let wrong: Vec<String> = all().into_iter().filter_map(|p| what(p, corpus(&p)).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_corpus_has_a_parser_and_something_that_it_accepts() {
    let names: Vec<&str> = all().iter().map(|parser| parser.name).collect();
    for entry in std::fs::read_dir(corpus_dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(&name.as_str()), "fuzz/corpus/{name} is no parser's");
    }
    let targets = std::fs::read_to_string(corpus_dir().join("../Cargo.toml")).unwrap();
    each(|parser, corpus| {
        let target = format!("name = \"{}\"", parser.name);
        assert!(targets.contains(&target), "{} is no target of fuzz/Cargo.toml", parser.name);
        let mut accepted = 0;
        for input in &corpus {
            accepted += usize::from(case(&parser, input)?);
        }
        if accepted > 0 { Ok(()) } else { Err(format!("{} accepts nothing of its corpus", parser.name)) }
    });
}

#[test]
fn damage_is_refused_or_read_without_harm() {
    let seconds = std::env::var("TARN_PARSER_SECONDS").ok().map(|text| text.parse::<u64>().unwrap());
    each(|parser, corpus| {
        let start = Instant::now();
        let (mut cases, mut accepted) = (0, 0);
        loop {
            let mut random = Random::new(cases as u64 + 1);
            for _ in 0..100 {
                let seed = &corpus[random.below(corpus.len())];
                let damaged = mutate(&mut random, seed, &corpus, LONGEST);
                accepted += usize::from(case(&parser, &damaged)?);
                cases += 1;
            }
            let over = match seconds {
                Some(seconds) => start.elapsed() >= Duration::from_secs(seconds),
                None => cases >= CASES,
            };
            if over {
                println!("{:24} {cases:9} cases, {accepted:9} accepted", parser.name);
                return Ok(());
            }
        }
    });
}

/// Every prefix of what is accepted, and every bit of it flipped: the damage that storage does by itself.
#[test]
fn cuts_and_flipped_bits_do_no_harm() {
    each(|parser, corpus| {
        for seed in corpus.iter().filter(|seed| seed.len() <= 512) {
            for cut in 0..seed.len() {
                case(&parser, &seed[..cut])?;
            }
            let mut wrong = seed.clone();
            for bit in 0..seed.len() * 8 {
                wrong[bit / 8] ^= 1 << (bit % 8);
                case(&parser, &wrong)?;
                wrong[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Ok(())
    });
}
