//! Many threads at once, on real time and real threads.

use crate::store::Behaviour;
use crate::world::{READ_WRITE, World, pattern};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{Answer, FsError, Ino};
use tarn_client::{Client, Target};

const RECORD: u32 = 4096;

fn quick() -> Behaviour {
    Behaviour { read_us: (0, 50), write_us: (0, 2000), ..Behaviour::default() }
}

fn world(seed: u64) -> World {
    World::with(seed, RECORD, quick(), |options| {
        options.dirty_max = 256 << 10;
        options.flush_age = Duration::from_millis(5);
    })
}

/// Waits on a thread that belongs to no runtime, as a FUSE thread does.
fn wait<T: Send + 'static>(runtime: &tokio::runtime::Handle, answer: Answer<T>) -> Result<T, FsError> {
    match answer {
        Answer::Ready(result) => result,
        Answer::Pending(future) => runtime.block_on(future),
    }
}

#[test]
fn appends_of_many_threads_do_not_mix() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let world = runtime.block_on(async { world(1) });
    let (ino, _) = runtime.block_on(world.create("log"));
    const THREADS: u8 = 8;
    const LINES: u32 = 400;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (client, handle) = (world.client.clone(), handle.clone());
            scope.spawn(move || {
                let (file, _, _) = wait(&handle, client.open(ino, READ_WRITE)).unwrap();
                for line in 0..LINES {
                    let text = format!("{thread} {line} {}\n", "x".repeat((line as usize * 37) % 900));
                    wait(&handle, client.write(file, Target::End, text.as_bytes(), false)).unwrap();
                    if line % 100 == 50 {
                        wait(&handle, client.fsync(ino, false)).unwrap();
                    }
                }
                client.close(file);
            });
        }
    });
    runtime.block_on(async {
        let mut world = world;
        world.client.shutdown(|_| {}).await.unwrap();
        world.remount();
        let (ino, handle) = world.open("log").await;
        let size = world.size(ino).await;
        let text = String::from_utf8(world.read(handle, 0, size as usize).await).unwrap();
        let mut next = [0; THREADS as usize];
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (thread, number): (usize, u32) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            assert_eq!(number, next[thread], "lines of one thread stay in order");
            assert_eq!(words[2].len(), (number as usize * 37) % 900);
            next[thread] += 1;
        }
        assert!(next.iter().all(|n| *n == LINES));
    });
}

/// One thread's own part of a file, and what must be in it.
struct Part {
    base: u64,
    data: Vec<u8>,
}

impl Part {
    const LEN: usize = 50_000;

    fn run(&mut self, client: &Arc<Client>, runtime: &tokio::runtime::Handle, ino: Ino, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (file, _, _) = wait(runtime, client.open(ino, READ_WRITE)).unwrap();
        for stamp in 0..400 {
            let from = rng.random_range(0..Self::LEN - 1);
            let to = rng.random_range(from + 1..=Self::LEN.min(from + 20_000));
            match rng.random_range(0..10) {
                0..5 => {
                    let data = pattern(seed * 1000 + stamp, from as u64, to - from);
                    self.data[from..to].copy_from_slice(&data);
                    wait(runtime, client.write(file, self.base + from as u64, &data, false)).unwrap();
                }
                5..8 => {
                    let found = wait(runtime, client.read(file, self.base + from as u64, to - from)).unwrap();
                    assert_eq!(found.to_vec(), &self.data[from..to]);
                }
                8 => {
                    let mode = tarn_client::FallocMode::ZeroRange;
                    let (offset, len) = (self.base + from as u64, (to - from) as u64);
                    wait(runtime, client.fallocate(file, mode, offset, len)).unwrap();
                    self.data[from..to].fill(0);
                }
                _ => wait(runtime, client.fsync(ino, true)).unwrap(),
            }
        }
        client.close(file);
    }
}

#[test]
fn threads_see_their_own_parts_of_a_file() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let mut world = runtime.block_on(async { world(2) });
    let (ino, file) = runtime.block_on(world.create("shared"));
    let mut parts: Vec<Part> =
        (0..6u64).map(|n| Part { base: n * Part::LEN as u64, data: vec![0; Part::LEN] }).collect();
    let whole = parts.len() * Part::LEN;
    runtime.block_on(world.write(file, whole as u64, b"end")).unwrap();
    std::thread::scope(|scope| {
        for (n, part) in parts.iter_mut().enumerate() {
            let (client, handle) = (world.client.clone(), handle.clone());
            scope.spawn(move || part.run(&client, &handle, ino, n as u64));
        }
    });
    runtime.block_on(async {
        world.client.shutdown(|_| {}).await.unwrap();
        world.remount();
        let (_, file) = world.open("shared").await;
        let found = world.read(file, 0, whole + 10).await;
        for part in &parts {
            let base = part.base as usize;
            assert!(found[base..base + Part::LEN] == part.data, "part at {base}");
        }
        assert_eq!(&found[whole..], b"end");
    });
}
