//! The command line: one tree of verbs, each in its own file.

use crate::context::Context;
use crate::verbs;
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// A POSIX parallel file system over object-storage buckets
#[derive(Debug, Parser)]
#[command(name = "tarn", bin_name = "tarn", version, arg_required_else_help = true, after_help = EXAMPLE)]
pub struct Cli {
    // The environment is read elsewhere: to clap it would be an argument, and `tarn` alone no line without any.
    /// Where this host keeps its state [default: /var/lib/tarn, or the user's own state directory] [env: TARN_STATE_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub verb: Verb,
}

const EXAMPLE: &str = "\
Example:
  tarn pool create tank /disk1 /disk2 s3://bucket/prefix?region=eu-central-1
  tarn mount tank /mnt
  tarn pool iostat -v tank 1
  tarn umount /mnt";

const POOL_EXAMPLE: &str = "\
Example:
  tarn pool create tank /disk1 /disk2
  tarn pool status -v tank
  tarn pool add tank s3://bucket/prefix?region=eu-central-1
  tarn pool export tank";

const FS_EXAMPLE: &str = "\
Example:
  tarn fs create -o compression=zstd tank/home
  tarn fs list -r -o name,used,quota tank
  tarn fs set quota=100G tank/home
  tarn fs mount tank/home";

const BUCKET_EXAMPLE: &str = "\
Example:
  tarn bucket check s3://bucket/prefix?region=eu-central-1";

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Pools: create, add, remove, list, status, iostat, import, export, destroy, get, set, history, clear
    #[command(subcommand, after_help = POOL_EXAMPLE)]
    Pool(verbs::pool::Verb),
    /// Datasets: create, list, destroy, rename, get, set, inherit, mount, unmount
    #[command(subcommand, after_help = FS_EXAMPLE)]
    Fs(verbs::fs::Verb),
    /// Buckets by themselves: check
    #[command(subcommand, after_help = BUCKET_EXAMPLE)]
    Bucket(verbs::bucket::Verb),
    Mount(verbs::mount::Args),
    #[command(visible_alias = "unmount")]
    Umount(verbs::umount::Args),
    Serve(verbs::serve::Args),
    Check(verbs::check::Args),
    Bench(verbs::bench::Args),
    Stats(verbs::stats::Args),
    Profile(verbs::profile::Args),
    Cost(verbs::cost::Args),
    Completions(verbs::completions::Args),
    Version(verbs::version::Args),
    Man(verbs::man::Args),
    Node(verbs::node::Args),
    #[cfg(debug_assertions)]
    Points(verbs::points::Args),
}

impl Verb {
    /// Carries the verb out; gives the exit status. `context` is made for those that need one.
    pub fn run(self, context: impl FnOnce() -> Result<Context>) -> Result<u8> {
        match self {
            Verb::Completions(args) => args.run(),
            Verb::Version(args) => args.run(),
            Verb::Man(args) => args.run(),
            #[cfg(debug_assertions)]
            Verb::Points(args) => args.run(),
            Verb::Pool(verb) => verb.run(&context()?),
            Verb::Fs(verb) => verb.run(&context()?),
            Verb::Bucket(verb) => verb.run(&context()?),
            Verb::Mount(args) => args.run(&context()?),
            Verb::Umount(args) => args.run(&context()?),
            Verb::Serve(args) => args.run(&context()?),
            Verb::Check(args) => args.run(&context()?),
            Verb::Bench(args) => args.run(&context()?),
            Verb::Stats(args) => args.run(&context()?),
            Verb::Profile(args) => args.run(&context()?),
            Verb::Cost(args) => args.run(&context()?),
            Verb::Node(args) => args.run(&context()?),
        }
    }

    /// The process goes on to serve mounts.
    pub fn serves(&self) -> bool {
        match self {
            Verb::Node(_) => true,
            Verb::Mount(args) => args.foreground,
            Verb::Serve(args) => args.foreground,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_has_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            for verb in command.get_subcommands() {
                let path = format!("{path} {}", verb.get_name());
                walk(verb, &path);
                if !verb.is_hide_set() {
                    let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
                    assert!(help.contains("Example"), "{path} has no example");
                    assert!(verb.get_about().is_some(), "{path} does not say what it does");
                }
            }
        }
        walk(&Cli::command(), "tarn");
    }

    #[test]
    fn a_line_without_a_verb_shows_those_that_people_use() {
        let said = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap_err();
        for line in ["tarn", "tarn pool", "tarn fs", "tarn bucket"] {
            let help = said(line).render().to_string();
            assert!(help.contains("Example:") && !help.contains("node"), "{line}: {help}");
        }
        for (line, told) in [
            ("tarn --state-dir /x", "'tarn' is followed by a verb: see 'tarn --help'"),
            ("tarn pool --state-dir /x", "'tarn pool' is followed by a verb: see 'tarn pool --help'"),
        ] {
            assert_eq!(crate::error::wrong_line(&said(line)), told);
        }
    }

    #[test]
    fn lines_that_administrators_type_are_read() {
        for line in [
            "tarn pool create -f -o rewind=0 -O compression=zstd tank /d1 /d2",
            "tarn pool create -n tank s3://b/p?endpoint=http://x:1",
            "tarn pool add tank /d3",
            "tarn pool list -Hp -o name,size tank",
            "tarn pool list -vL",
            "tarn pool status -v tank --json",
            "tarn pool iostat -v -l tank 2 5",
            "tarn pool iostat 2 5",
            "tarn pool import -d /a -d /b -f tank other",
            "tarn pool import -a",
            "tarn pool import",
            "tarn pool export -f tank",
            "tarn pool destroy tank",
            "tarn pool get all tank",
            "tarn pool get -Hp rewind,failmode",
            "tarn pool set failmode=continue tank",
            "tarn pool history -i tank",
            "tarn pool clear tank",
            "tarn fs create -p -o quota=10G tank/a/b",
            "tarn fs list -r -H -p -o name,used tank/a",
            "tarn fs list -t filesystem --json",
            "tarn fs destroy -rfnv tank/a",
            "tarn fs rename tank/a tank/b",
            "tarn fs get -r -s local,inherited all tank",
            "tarn fs get -Hpo value compression tank/a tank/b",
            "tarn fs set atime=off readonly=on tank/a",
            "tarn fs inherit -r compression tank",
            "tarn fs mount -a",
            "tarn fs mount",
            "tarn fs unmount tank/a",
            "tarn bucket check --json s3://b/p",
            "tarn mount -f -o ro,allow_other tank/a /mnt",
            "tarn umount -f /mnt",
            "tarn mount -o ca=ca.pem server:/tank/a /mnt",
            "tarn serve tank",
            "tarn serve --listen 0.0.0.0:9000 --cert c.pem --key c.key --client-ca ca.pem tank",
            "tarn serve --metrics 9123 tank",
            "tarn serve --stop tank",
            "tarn serve --list --json tank",
            "tarn serve --give-up tank/a",
            "tarn unmount tank/a",
            "tarn check --data tank --json",
            "tarn stats tank",
            "tarn stats -v tank/home 2 5",
            "tarn stats --jobs -H -p -o name,get /mnt",
            "tarn stats --raw tank",
            "tarn profile tank/home 2.5",
            "tarn profile -Hp --slowest 0 -o operation,mdt_time /mnt",
            "tarn cost -v --internet tank",
            "tarn cost --jobs --prices p.json --json tank",
            "tarn completions bash",
            "tarn version",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        for line in ["tarn", "tarn pool create tank", "tarn fs create", "tarn mount tank", "tarn pool lst"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
