//! The binary as administrators and scripts use it, on pools of local directories, without FUSE. What needs a mount
//! is in `tests/rows` of the repository.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A host with a state directory of its own, and some empty buckets.
struct Host {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Host {
    fn new(buckets: usize) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for n in 0..buckets {
            std::fs::create_dir(root.join(format!("d{n}"))).unwrap();
        }
        Host { _dir: dir, root }
    }

    fn command(&self, state: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tarn"));
        command
            .current_dir(&self.root)
            .env("TARN_STATE_DIR", self.root.join(state))
            .env_remove("JOURNAL_STREAM");
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command("state").args(line.split_whitespace()).output().unwrap()
    }

    /// Runs a line that must succeed; gives what it printed.
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Runs a line that must fail with this status and one line of text; gives the line.
    fn refused(&self, line: &str, status: i32) -> String {
        told(&self.run(line), line, status)
    }
}

fn told(output: &Output, line: &str, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{line}: {text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{line}: {text}");
    assert!(text.starts_with("tarn: "), "{line}: {text}");
    text
}

#[test]
fn a_pool_from_its_making_to_its_end() {
    let host = Host::new(3);
    host.ok("pool create -o rewind=0 -O compression=zstd tank d0 d1");
    assert!(host.refused("pool create tank d2", 1).contains("tank"));
    let list = host.ok("pool list -H -p -o name,health");
    assert_eq!(list, "tank\tONLINE\n");
    host.ok("fs create -p -o quota=1G tank/a/b");
    assert_eq!(host.ok("fs list -H -o name"), "tank\ntank/a\ntank/a/b\n");
    let get = host.ok("fs get -H -o property,value,source compression,quota tank/a/b");
    assert_eq!(get, "compression\tzstd\tinherited from tank\nquota\t1G\tlocal\n");
    host.ok("fs set compression=off tank/a");
    assert_eq!(host.ok("fs get -H -o value compression tank/a/b"), "off\n");
    host.ok("fs inherit compression tank/a");
    assert_eq!(host.ok("fs get -H -o value -s inherited compression tank/a"), "zstd\n");
    host.ok("fs rename tank/a tank/c");
    assert_eq!(host.ok("fs destroy -rnv tank/c"), "would destroy tank/c/b\nwould destroy tank/c\n");
    assert!(host.refused("fs destroy tank/c", 1).contains("-r"));
    host.ok("fs destroy -r tank/c");
    host.ok("pool add tank d2");
    assert_eq!(host.ok("pool iostat -v -H tank").lines().count(), 4);
    host.ok("check tank");
    let history = host.ok("pool history tank");
    for command in ["pool create", "fs create", "fs set", "fs rename", "fs destroy", "pool add"] {
        assert!(history.contains(command), "{command}: {history}");
    }
    host.ok("pool destroy tank");
    assert_eq!(host.ok("pool list -H"), "");
}

#[test]
fn a_pool_moves_between_hosts() {
    let host = Host::new(2);
    host.ok("pool create tank d0 d1");
    host.ok("fs create tank/home");
    let other = |line: &str| host.command("other").args(line.split(' ')).output().unwrap();
    // It was not exported.
    assert!(told(&other("pool import -d . tank"), "import", 1).contains("-f"));
    host.ok("pool export tank");
    assert!(host.refused("fs list tank", 1).contains("exported"));
    let listed = String::from_utf8(other("pool import -d .").stdout).unwrap();
    assert!(listed.contains("pool: tank") && listed.contains("can be imported"), "{listed}");
    assert!(other("pool import -d . tank boat").status.success());
    let names = String::from_utf8(other("fs list -H -o name").stdout).unwrap();
    assert_eq!(names, "boat\nboat/home\n");
    assert!(other("pool export boat").status.success());
    // The first host remembers where the buckets are, and finds the pool by its new name.
    host.ok("pool import boat");
    assert_eq!(host.ok("pool list -H -o name"), "boat\n");
}

#[test]
fn wrong_lines_are_refused_in_one_line() {
    let host = Host::new(2);
    host.ok("pool create tank d0");
    for (line, status, word) in [
        ("pool create 7up d1", 2, "7up"),
        ("pool create -o colour=red t d1", 2, "colour"),
        ("pool create -O recordsize=3 t d1", 2, "power of two"),
        ("pool create -O colour=red t d1", 2, "colour"),
        ("pool status nowhere", 1, "nowhere"),
        ("pool get colour tank", 2, "colour"),
        ("pool set rewind=soon tank", 2, "rewind"),
        ("pool list -o colour", 2, "colour"),
        ("pool iostat tank 0", 2, "interval"),
        ("pool import", 2, "-d"),
        ("fs create tank", 2, "pool"),
        ("fs create tank/x/y", 1, "-p"),
        ("fs list tank/none", 1, "tank/none"),
        ("fs set compression=rot13 tank", 2, "lz4"),
        ("fs set used=5 tank", 2, "read-only"),
        ("fs inherit quota tank", 2, "quota"),
        ("fs mount tank/none", 1, "tank/none"),
        ("mount -o colour=red tank d1", 2, "colour"),
        ("mount nowhere d1", 1, "nowhere"),
        ("umount d1", 1, "d1"),
        ("umount nowhere", 1, "nowhere"),
    ] {
        let text = host.refused(line, status);
        assert!(text.contains(word), "{line}: {text}");
    }
    assert_eq!(std::fs::read_dir(host.root.join("d1")).unwrap().count(), 0);
}

/// A node without mounts, ended by SIGTERM.
struct Running(Child);

impl Running {
    fn start(host: &Host) -> Running {
        let child = host.command("state").args(["node", "tank"]).stderr(Stdio::null()).spawn().unwrap();
        let socket = host.root.join("state/tank.sock");
        wait_for(|| socket.exists());
        Running(child)
    }

    fn stop(&mut self) -> std::process::ExitStatus {
        // SAFETY: the process is our own child, and was not waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(fact: impl Fn() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends bytes to a node, and gives the first line of its answer.
fn send(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may hang up on a line that is too long before it has read all of it.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

#[test]
fn a_node_answers_verbs_and_survives_garbage() {
    let host = Host::new(2);
    host.ok("pool create tank d0 d1");
    let mut node = Running::start(&host);
    let socket = host.root.join("state/tank.sock");
    host.ok("fs create -o atime=off tank/a");
    assert_eq!(host.ok("fs get -H -o value atime tank/a"), "off\n");
    for garbage in [
        b"garbage\n".to_vec(),
        b"{\"version\":1}\n".to_vec(),
        b"\xff\xfe\0\n".to_vec(),
        b"cut off".to_vec(),
        vec![b'x'; 3 << 20],
    ] {
        let answer = send(&socket, &garbage);
        assert!(answer.is_empty() || answer.contains("failed"), "{answer}");
    }
    let other_version = send(&socket, b"{\"version\":99,\"command\":\"\",\"request\":\"pool\"}\n");
    assert!(other_version.contains("another version"), "{other_version}");
    assert_eq!(host.ok("pool list -H -o name,health"), "tank\tONLINE\n");
    assert!(host.refused("node tank", 1).contains("another process"));
    assert!(node.stop().success());
    assert!(!socket.exists());
    assert_eq!(host.ok("fs list -H -o name"), "tank\ntank/a\n");
}

#[test]
fn a_killed_node_leaves_nothing_in_the_way() {
    let host = Host::new(2);
    host.ok("pool create tank d0 d1");
    let mut node = Running::start(&host);
    host.ok("fs create tank/a");
    node.0.kill().unwrap();
    node.0.wait().unwrap();
    assert!(host.root.join("state/tank.sock").exists());
    assert_eq!(host.ok("fs list -H -o name"), "tank\ntank/a\n");
}

#[test]
fn verbs_at_the_same_time_wait_for_each_other() {
    let host = Host::new(2);
    host.ok("pool create tank d0 d1");
    let run = |n: usize| host.command("state").args(["fs", "create", &format!("tank/x{n}")]).spawn().unwrap();
    let children: Vec<Child> = (0..6).map(run).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(host.ok("fs list -H -o name").lines().count(), 7);
}
