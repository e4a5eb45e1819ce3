//! Damage, the same for the same seed: flipped bits, odd numbers, cuts, repeats, and pieces of other inputs.

/// A sequence of random numbers from a seed: Marsaglia's xorshift64*, which is enough to choose damage.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() >> 33) as usize % end.max(1)
    }
}

/// Numbers at which sums and lengths go wrong.
const ODD: [u64; 9] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX, 1 << 62];

/// Damages `input` in one to four ways. `others` are inputs from which pieces may come. The result has at most
/// `longest` bytes.
pub fn mutate(random: &mut Random, input: &[u8], others: &[Vec<u8>], longest: usize) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=random.below(4) {
        once(random, &mut out, others);
    }
    out.truncate(longest);
    out
}

fn once(random: &mut Random, out: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = random.below(out.len());
    match random.below(9) {
        0 | 1 if !out.is_empty() => out[at] ^= 1 << random.below(8),
        2 if !out.is_empty() => out[at] = random.draw() as u8,
        3 => {
            let number = ODD[random.below(ODD.len())].to_le_bytes();
            let len = [1, 2, 4, 8][random.below(4)].min(out.len() - at.min(out.len()));
            out[at..at + len].copy_from_slice(&number[..len]);
        }
        4 => out.truncate(at),
        5 => {
            out.drain(at..(at + random.below(64)).min(out.len()));
        }
        6 => {
            let piece = out[at..(at + random.below(64)).min(out.len())].to_vec();
            let to = random.below(out.len() + 1);
            out.splice(to..to, piece);
        }
        7 => {
            let piece: Vec<u8> = (0..random.below(16)).map(|_| random.draw() as u8).collect();
            out.splice(at..at, piece);
        }
        _ if !others.is_empty() => {
            let other = &others[random.below(others.len())];
            let from = random.below(other.len());
            let piece = &other[from..(from + random.below(256)).min(other.len())];
            let end = (at + random.below(piece.len() + 1)).min(out.len());
            out.splice(at..end, piece.iter().copied());
        }
        _ => {}
    }
}
