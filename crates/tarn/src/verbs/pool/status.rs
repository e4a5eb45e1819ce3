use crate::context::Context;
use crate::control::report::PoolReport;
use crate::size;
use crate::table::{columns, printable};
use anyhow::Result;

/// Show the state of pools and their vdevs, with errors
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  tarn pool status
  tarn pool status -v tank")]
pub struct Args {
    /// Name every damaged file and say what is wrong with each vdev
    #[arg(short = 'v')]
    verbose: bool,
    /// Only pools that are not healthy
    #[arg(short = 'x')]
    unhealthy: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Pools; all when none is named
    pools: Vec<String>,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let pools = context.pool_names(&self.pools)?;
        let (mut reports, status) = context.of_each(&pools, |pool| context.pool_report(pool))?;
        if self.unhealthy {
            reports.retain(|r| r.state != "ONLINE" || !r.errors.is_empty());
        }
        if self.json {
            context.print(&format!("{:#}\n", serde_json::to_value(&reports)?));
        } else if reports.is_empty() && status == 0 {
            let text = if self.unhealthy { "all pools are healthy\n" } else { "no pools available\n" };
            context.print(text);
        } else {
            let texts: Vec<String> = reports.iter().map(|r| self.text(r)).collect();
            context.print(&texts.join("\n"));
        }
        Ok(status)
    }

    /// The report as zpool lays it out.
    fn text(&self, pool: &PoolReport) -> String {
        let mut text = format!("  pool: {}\n state: {}\n", pool.name, pool.state);
        if let Some(status) = &pool.status {
            text += &format!("status: {status}\n");
        }
        if let Some(action) = &pool.action {
            text += &format!("action: {action}\n");
        }
        text += "config:\n\n";
        for line in columns(&self.tree(pool), &[false, false, true, true, true, false]).lines() {
            text += &format!("\t{line}\n");
        }
        text += &match (pool.errors.len(), self.verbose) {
            (0, _) => "\nerrors: No known data errors\n".to_string(),
            (n, false) => format!("\nerrors: {n} data errors, use '-v' for a list\n"),
            (_, true) => {
                format!(
                    "\nerrors: Permanent errors have been detected in the following files:\n\n{}",
                    list(&pool.errors)
                )
            }
        };
        text += &match (pool.repaired.len(), self.verbose) {
            (0, _) => String::new(),
            (n, false) => format!("repaired: {n} from another copy, use '-v' for a list\n"),
            (_, true) => format!("\nrepaired from another copy:\n\n{}", list(&pool.repaired)),
        };
        text
    }

    fn tree(&self, pool: &PoolReport) -> Vec<Vec<String>> {
        let count = |n: u64| if self.exact { n.to_string() } else { size::count(n) };
        let words = ["NAME", "STATE", "READ", "WRITE", "CKSUM", ""];
        let mut lines = vec![words.map(String::from).to_vec()];
        let sum = |f: fn(&crate::control::report::VdevReport) -> u64| count(pool.vdevs.iter().map(f).sum());
        lines.push(vec![
            pool.name.clone(),
            pool.state.clone(),
            sum(|v| v.read_errors),
            sum(|v| v.write_errors),
            sum(|v| v.checksum_errors),
            String::new(),
        ]);
        let caches = pool.caches.iter().map(|cache| (cache, true));
        let mut above = false;
        for (vdev, cache) in pool.vdevs.iter().map(|vdev| (vdev, false)).chain(caches) {
            if cache && !above {
                above = true;
                lines.push(std::iter::once("cache".into()).chain((1..6).map(|_| String::new())).collect());
            }
            let problem = vdev.problem.clone().filter(|_| self.verbose || vdev.state != "ONLINE");
            lines.push(vec![
                format!("  {}", vdev.name),
                vdev.state.clone(),
                count(vdev.read_errors),
                count(vdev.write_errors),
                count(vdev.checksum_errors),
                problem.unwrap_or_default(),
            ]);
        }
        lines
    }
}

fn list(lines: &[String]) -> String {
    lines.iter().map(|line| format!("        {}\n", printable(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::VdevReport;

    fn report() -> PoolReport {
        let vdev = |name: &str, state: &str| VdevReport {
            name: name.into(),
            state: state.into(),
            checksum_errors: 2,
            problem: Some("bucket does not answer".into()),
            ..VdevReport::default()
        };
        PoolReport {
            name: "tank".into(),
            guid: 7,
            state: "DEGRADED".into(),
            status: Some("a vdev does not answer".into()),
            action: None,
            size: 0,
            allocated: 0,
            free: 0,
            properties: vec![],
            open_ms: 1,
            vdevs: vec![vdev("/d1", "ONLINE"), vdev("/d2", "FAULTED")],
            caches: vec![],
            errors: vec!["tank:/a/file".into()],
            repaired: vec![],
        }
    }

    #[test]
    fn status_is_laid_out_as_zpools() {
        let args = Args { verbose: false, unhealthy: false, exact: false, json: false, pools: Vec::new() };
        let expected = "  pool: tank
 state: DEGRADED
status: a vdev does not answer
config:

\tNAME   STATE     READ  WRITE  CKSUM
\ttank   DEGRADED     0      0      4
\t  /d1  ONLINE       0      0      2
\t  /d2  FAULTED      0      0      2  bucket does not answer

errors: 1 data errors, use '-v' for a list
";
        assert_eq!(args.text(&report()), expected);
        let cache = VdevReport { name: "/nvme".into(), state: "UNAVAIL".into(), ..VdevReport::default() };
        let with_cache = args.text(&PoolReport { caches: vec![cache], ..report() });
        assert!(with_cache.contains("\n\tcache\n\t  /nvme  UNAVAIL      0      0      0\n"), "{with_cache}");
        let args = Args { verbose: true, ..args };
        assert!(args.text(&report()).contains("        tank:/a/file\n"));
        // Whoever may name files must not write to an administrator's terminal.
        let forged = vec!["tank:/x\n\u{1b}[31m".to_string()];
        let healed = args.text(&PoolReport { errors: vec![], repaired: forged, ..report() });
        let end =
            "errors: No known data errors\n\nrepaired from another copy:\n\n        tank:/x\\n\\u{1b}[31m\n";
        assert!(healed.ends_with(end), "{healed}");
    }
}
