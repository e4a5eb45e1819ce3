//! The simulation: all of Tarn below its doors in one process, with everything that chance decides drawn from one seed.
//!
//! # What runs
//! The real client over the real metadata service over the real metadata target (with its database) over the real pool
//! over the guard of each vdev. Only what lies below is not real: buckets in memory that fail, are slow, answer out of
//! order, shorten and flip what they give, lose replies, apply requests long after nobody waits for them any more, and
//! forget at a crash what was not durable. Some worlds have stores that are durable when they answer, as S3 is, and some
//! have stores that need a sync, as directories do.
//!
//! One thread runs it all on a paused clock: when nothing can go on, time jumps to the next timer, so hours cost nothing.
//! A seed is a process of its own, whose entropy and whose clock come from the simulation, down to what the standard
//! library asks the operating system for; so the same seed gives the same trace, request by request.
//!
//! # What is compared
//! Every call is made on the reference model ([`tree`], [`content`]) too: its answer or its error must be the model's,
//! and so must be the attributes of every inode that it touched, change and modification times included (a time that a
//! call must set lies between its beginning and its end; one that it must not move stays). After a clean remount the
//! whole tree is read back and must be the model.
//!
//! # What a crash may leave
//! The model keeps each namespace that stood since the last acknowledged fsync or sync (both make all names durable),
//! numbered by operations, and for each file what it was after each operation since its data was last made durable. What
//! is found after a crash must be explained by one operation number `k`:
//! - names, link counts, modes, owners, targets, extended attributes and directories' times are those after `k`, all
//!   of them: a prefix of the order in which calls were made;
//! - `k` is not older than the last fsync or sync that was answered;
//! - each record of each file holds, up to the file's end, exactly what it held after some operation between two
//!   bounds, and the file was that long at the time. The lower bound is the file's last fsync or sync, or the last
//!   `link` or `rename` over another of it that `k` shows, since both commit its data first. The upper bound is the first
//!   operation on names that `k` does not show: data is committed after what was there before it;
//! - each file's size and times lie within those that it had between the same bounds.
//!
//! A truncation into a record that a crash parts may leave the old size, and zeros to the end of that record. A call that
//! was cut off counts as one that may or may not have happened. Then the checker of the dataset reads every byte and
//! must find nothing wrong, and what was found is where the model goes on.
//!
//! # Takeovers
//! Another host takes the pool by force while the first goes on. The newcomer must find a state as after a crash; what
//! the first one is told is durable from then on must be in it; and within seconds the first one must be refused.

pub mod content;
pub mod history;
pub mod tree;
