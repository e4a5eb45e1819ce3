//! What mount(8) and umount(8) run for file systems of type `fuse.tarn`: this program under another name.
//!
//! `mount.fuse.tarn SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]` and `umount.fuse.tarn DIR [-flnrv] [-t TYPE]`. Their
//! words become an ordinary command line.

use crate::error::usage;
use anyhow::Result;
use std::path::Path;

/// What the name and the words of a helper ask for.
#[derive(Debug, PartialEq)]
pub enum Helper {
    /// The command line to run in its place.
    Run(Vec<String>),
    /// `mount -f`: all is well, do nothing.
    Nothing,
}

/// `None` when the program was not called as a helper.
pub fn helper(words: &[String]) -> Option<Result<Helper>> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    match name {
        "mount.fuse.tarn" | "mount.tarn" => Some(mount(&words[1..])),
        "umount.fuse.tarn" | "umount.tarn" => Some(umount(&words[1..])),
        _ => None,
    }
}

/// A single-letter option, and its value if it takes one.
type Flag<'a> = (char, &'a str);

/// Plain words, and options.
fn split<'a>(words: &'a [String], with_value: &str) -> Result<(Vec<&'a str>, Vec<Flag<'a>>)> {
    let (mut plain, mut flags) = (Vec::new(), Vec::new());
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) else {
            plain.push(word.as_str());
            continue;
        };
        for (at, letter) in letters.char_indices() {
            if !with_value.contains(letter) {
                flags.push((letter, ""));
                continue;
            }
            let behind = &letters[at + letter.len_utf8()..];
            let value = if behind.is_empty() { rest.next().map(String::as_str) } else { Some(behind) };
            flags.push((letter, value.ok_or_else(|| usage(format!("-{letter} needs a value")))?));
            break;
        }
    }
    Ok((plain, flags))
}

fn mount(words: &[String]) -> Result<Helper> {
    let (plain, flags) = split(words, "otN")?;
    let [spec, dir] = plain[..] else {
        return Err(usage("write mount.fuse.tarn POOL[/DATASET] DIR [-o OPTIONS]"));
    };
    let mut line = vec!["tarn".to_string(), "mount".into()];
    for (letter, value) in flags {
        match letter {
            'f' => return Ok(Helper::Nothing),
            's' => line.push("--sloppy".into()),
            'r' => line.extend(["-o".into(), "ro".into()]),
            'o' => line.extend(["-o".into(), value.into()]),
            'n' | 'v' | 'w' | 't' | 'N' => {}
            other => return Err(usage(format!("-{other} is unknown"))),
        }
    }
    // `mount -t fuse tarn#tank /mnt` is how older fstab lines name a program.
    line.extend(["--".into(), spec.strip_prefix("tarn#").unwrap_or(spec).into(), dir.into()]);
    Ok(Helper::Run(line))
}

fn umount(words: &[String]) -> Result<Helper> {
    let (plain, flags) = split(words, "tN")?;
    let [dir] = plain[..] else {
        return Err(usage("write umount.fuse.tarn DIR [-f]"));
    };
    let mut line = vec!["tarn".to_string(), "umount".into(), "--helper".into()];
    if flags.iter().any(|(letter, _)| matches!(letter, 'f' | 'l')) {
        line.push("-f".into());
    }
    line.extend(["--".into(), dir.into()]);
    Ok(Helper::Run(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn run(line: &str) -> Option<Result<Helper>> {
        helper(&line.split(' ').map(String::from).collect::<Vec<_>>())
    }

    fn line(text: &str) -> String {
        match run(text).unwrap().unwrap() {
            Helper::Run(line) => {
                Cli::try_parse_from(&line).unwrap();
                line.join(" ")
            }
            Helper::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn helpers_become_command_lines() {
        assert!(run("/usr/bin/tarn mount tank /mnt").is_none());
        assert_eq!(line("/sbin/mount.fuse.tarn tank /mnt -o rw"), "tarn mount -o rw -- tank /mnt");
        assert_eq!(
            line("mount.fuse.tarn tank/a /mnt -snv -o ro,x-y -t fuse.tarn"),
            "tarn mount --sloppy -o ro,x-y -- tank/a /mnt"
        );
        assert_eq!(line("mount.tarn -oro tarn#tank /mnt"), "tarn mount -o ro -- tank /mnt");
        assert_eq!(line("mount.tarn -f tank /mnt"), "nothing");
        assert_eq!(line("umount.fuse.tarn /mnt -l -t fuse.tarn"), "tarn umount --helper -f -- /mnt");
    }

    #[test]
    fn wrong_words_are_refused() {
        for text in ["mount.tarn tank", "mount.tarn tank /mnt -o", "mount.tarn tank /mnt -x", "umount.tarn"] {
            assert!(run(text).unwrap().is_err(), "{text}");
        }
    }
}
