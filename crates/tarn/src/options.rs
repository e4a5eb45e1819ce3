//! Mount options, as `tarn mount -o`, mount(8) and fstab give them.

use crate::control::MountRequest;
use crate::error::usage;
use crate::size;
use crate::telemetry;
use anyhow::Result;
use tarn_access::fuse::JobId;

/// Options that fstab lines carry for others to read.
const IGNORED: &[&str] = &[
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "async",
    "nosub",
    "silent",
    "loud",
    "diratime",
    "nolazytime",
    "norelatime",
];

const KNOWN: &str = "ro, allow_other, noatime, atime, relatime, strictatime, dev, nodev, suid, nosuid, exec, noexec, \
                     read_ahead=SIZE, arc=SIZE|off, prefetch=SIZE|off, hybrid_io=SIZE|off, awake=auto|on|off, memory=SIZE, \
                     metrics=[ADDRESS:]PORT, jobid=off|comm.uid|env:NAME|cgroup|TEXT, nonempty, buckets=own|server, ca=FILE, cert=FILE, key=FILE";

/// A size of fewer bytes was meant in another unit.
pub const SIZE_MIN: u64 = 4096;

/// Reads option lists, each of them separated by commas. `sloppy` passes over what is unknown, as mount(8) -s.
pub fn parse(lists: &[String], sloppy: bool) -> Result<MountRequest> {
    let mut out = MountRequest::default();
    for option in lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
        let size = || {
            let bytes = value.and_then(size::parse).filter(|n| *n >= SIZE_MIN);
            bytes.ok_or_else(|| {
                usage(format!("mount option '{option}': write {name}=SIZE with its unit, as in {name}=64M"))
            })
        };
        // A process of its own opens it, in another directory.
        let file =
            || std::path::absolute(value.unwrap_or_default()).map_err(|e| usage(format!("{option}: {e}")));
        match (name, value) {
            ("ro", None) => out.read_only = true,
            ("rw", None) => out.read_only = false,
            ("allow_other", None) => out.allow_other = true,
            ("noatime", None) => out.noatime = true,
            ("atime", None) => out.noatime = false,
            ("relatime", None) => out.relatime = Some(true),
            ("strictatime", None) => out.relatime = Some(false),
            ("dev", None) => out.dev = Some(true),
            ("nodev", None) => out.dev = Some(false),
            ("suid", None) => out.suid = Some(true),
            ("nosuid", None) => out.suid = Some(false),
            ("exec", None) => out.exec = Some(true),
            ("noexec", None) => out.exec = Some(false),
            ("nonempty" | "overlay", None) => out.overlay = true,
            ("read_ahead", _) => out.read_ahead = Some(size()?),
            ("hybrid_io", Some("off")) => out.hybrid_io = Some(u64::MAX),
            ("hybrid_io", _) => out.hybrid_io = Some(size()?),
            ("awake", Some(how)) => out.awake = Some(how.parse().map_err(usage)?),
            ("arc", Some("off")) => out.arc = Some(0),
            ("arc", _) => out.arc = Some(size()?),
            ("prefetch", Some("off")) => out.prefetch = Some(0),
            ("prefetch", _) => out.prefetch = Some(size()?),
            ("memory", _) => out.memory = Some(size()?),
            ("jobid", Some(how)) => {
                how.parse::<JobId>().map_err(usage)?;
                out.job_id = Some(how.to_string());
            }
            ("metrics", Some(at)) => out.metrics = Some(telemetry::address(at)?),
            ("buckets", Some("own")) => out.through_server = false,
            ("buckets", Some("server")) => out.through_server = true,
            ("ca", Some(_)) => out.certificates.ca = Some(file()?),
            ("cert", Some(_)) => out.certificates.cert = Some(file()?),
            ("key", Some(_)) => out.certificates.key = Some(file()?),
            _ if name.starts_with("x-") || name.starts_with("comment") || IGNORED.contains(&name) => {}
            _ if sloppy => {}
            _ => return Err(usage(format!("mount option '{option}' is unknown: there are {KNOWN}"))),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_access::fuse::Awake;

    fn read(text: &str) -> Result<MountRequest> {
        parse(&[text.to_string()], false)
    }

    #[test]
    fn options_are_read() {
        let all =
            read("ro,allow_other,noatime,nodev,suid,noexec,read_ahead=4M,hybrid_io=off,memory=1G").unwrap();
        assert!(all.read_only && all.allow_other && all.noatime);
        assert_eq!((all.dev, all.suid, all.exec), (Some(false), Some(true), Some(false)));
        assert_eq!(all.hybrid_io, Some(u64::MAX));
        assert_eq!(read("hybrid_io=64M").unwrap().hybrid_io, Some(64 << 20));
        assert_eq!((read("arc=off").unwrap().arc, read("arc=16M").unwrap().arc), (Some(0), Some(16 << 20)));
        assert_eq!(read("prefetch=off").unwrap().prefetch, Some(0));
        assert_eq!(read("prefetch=1M").unwrap().prefetch, Some(1 << 20));
        assert_eq!((all.read_ahead, all.memory), (Some(4 << 20), Some(1 << 30)));
        assert_eq!(read("strictatime").unwrap().relatime, Some(false));
        assert_eq!(read("metrics=9123").unwrap().metrics, Some("127.0.0.1:9123".parse().unwrap()));
        assert_eq!(read("jobid=env:SLURM_JOB_ID").unwrap().job_id.as_deref(), Some("env:SLURM_JOB_ID"));
        assert_eq!(read("awake=off").unwrap().awake, Some(Awake::Off));
        assert!(
            read("awake").is_err() && read("awake=yes").unwrap_err().to_string().contains("auto, on or off")
        );
        assert!(read("jobid").is_err() && read("jobid=env:").unwrap_err().to_string().contains("env:NAME"));
        assert!(read("metrics").is_err() && read("metrics=here").is_err());
    }

    #[test]
    fn what_fstab_carries_is_passed_over() {
        let line = "rw,defaults,_netdev,nofail,x-systemd.automount,x-gvfs-show,noauto,user,comment=home";
        assert_eq!(read(line).unwrap(), MountRequest::default());
        assert_eq!(read("").unwrap(), MountRequest::default());
    }

    #[test]
    fn the_unknown_is_refused_unless_sloppy() {
        let error = read("ro,allow_others").unwrap_err().to_string();
        assert!(error.contains("'allow_others'") && error.contains("allow_other,"), "{error}");
        assert!(read("memory=4").is_err() && read("memory=-1").is_err());
        assert!(read("memory=lots").is_err() && read("memory").is_err() && read("ro=1").is_err());
        assert!(parse(&["allow_others,ro".into()], true).unwrap().read_only);
    }
}
