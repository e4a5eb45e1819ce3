//! This process's entropy and clock, taken from the operating system's hands.
//!
//! The standard library, Tokio and Tarn's dependencies draw keys of hash tables, the order of `select!` and identities
//! from `getrandom`, and read time by `clock_gettime`. Both are defined here, and so in this program alone: once armed,
//! the one gives what follows from the seed and the other a time that moves only with Tokio's paused clock.

use libc::{c_int, c_long, c_uint, c_void, clockid_t, size_t, ssize_t, timespec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tarn_base::{Clock, Timespec};

static ARMED: AtomicBool = AtomicBool::new(false);
static ENTROPY: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds on both clocks.
static NOW: AtomicU64 = AtomicU64::new(0);
/// Seconds between the two clocks: it is some day in 2027.
const EPOCH: u64 = 1_800_000_000;
const SECOND: u64 = 1_000_000_000;

/// From here on everything follows from the seed.
pub fn arm(seed: u64) {
    ENTROPY.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), SeqCst);
    NOW.store(1000 * SECOND, SeqCst);
    ARMED.store(true, SeqCst);
}

fn entropy() -> u64 {
    // SplitMix64.
    let state = ENTROPY.fetch_add(0x9e37_79b9_7f4a_7c15, SeqCst);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// # Safety
/// As `getrandom(2)`: `buffer` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    if !ARMED.load(SeqCst) {
        // SAFETY: the caller's own arguments, as they came.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) as ssize_t };
    }
    if len > 0 {
        // SAFETY: the caller promises room for `len` bytes.
        let out = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
        for piece in out.chunks_mut(8) {
            piece.copy_from_slice(&entropy().to_le_bytes()[..piece.len()]);
        }
    }
    len as ssize_t
}

/// # Safety
/// As `clock_gettime(2)`: `time` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if !ARMED.load(SeqCst) {
        // SAFETY: the caller's own arguments, as they came.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) as c_int };
    }
    let now = NOW.load(SeqCst);
    let wall = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE);
    let seconds = now / SECOND + if wall { EPOCH } else { 0 };
    // SAFETY: the caller promises a place to write to.
    unsafe {
        (*time).tv_sec = seconds as libc::time_t;
        (*time).tv_nsec = (now % SECOND) as c_long;
    }
    0
}

/// Closes the sockets that hold pools, as the kernel does when a process ends. A database that is cut off while it is
/// being opened leaves a cycle of references behind, and with it whatever it holds.
pub fn end_process() {
    for descriptor in 3..256 {
        // SAFETY: all zeros is an address, and its own length is given.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: both are ours, and a descriptor that is no socket is an error.
        let named = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &mut len) } == 0;
        let name = address.sun_path.iter().skip(1).map(|byte| *byte as u8);
        if named && i32::from(address.sun_family) == libc::AF_UNIX && name.take(10).eq(*b"tarn-pool-") {
            // SAFETY: its owner was leaked and will not close it.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Microseconds since the machine started, whatever this program's own clock says.
pub fn real_micros() -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// A runtime of one thread whose time stands still while anything can run, and which takes this process's clock along.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let start = std::time::Instant::now();
    let before = NOW.load(SeqCst);
    let follow = move || {
        let passed = tokio::time::Instant::now().into_std().saturating_duration_since(start);
        NOW.fetch_max(before + passed.as_nanos() as u64, SeqCst);
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(follow)
        .build()
}

/// The clock for client and metadata target: each look is a microsecond later than the last, as on a real machine, so
/// that no two events have one time.
pub struct SimClock {
    start: tokio::time::Instant,
    wall: u64,
    looks: AtomicU64,
}

impl SimClock {
    /// A clock for a runtime that has just been made.
    pub fn new() -> SimClock {
        SimClock { start: tokio::time::Instant::now(), wall: NOW.load(SeqCst), looks: AtomicU64::new(0) }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timespec {
        let look = self.looks.fetch_add(1, SeqCst);
        let nanos = self.wall + self.start.elapsed().as_nanos() as u64 + look;
        Timespec { sec: (EPOCH + nanos / SECOND) as i64, nsec: (nanos % SECOND) as u32 }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
