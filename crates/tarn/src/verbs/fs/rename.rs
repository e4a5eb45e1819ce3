use crate::context::Context;
use crate::control::Request;
use crate::error::usage;
use crate::names;
use anyhow::Result;

/// Give a dataset another name, with all that lies below it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is mounted is unmounted and mounted again at its new place.

Example:
  tarn fs rename tank/home tank/users")]
pub struct Args {
    /// Make the datasets above the new name
    #[arg(short = 'p')]
    parents: bool,
    /// Unmount what is mounted, even while it is in use
    #[arg(short = 'f')]
    force: bool,
    from: String,
    to: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        check(&self.from, &self.to)?;
        let pool = names::pool_of(&self.from)?.to_string();
        let request =
            Request::Rename { from: self.from, to: self.to, parents: self.parents, force: self.force };
        context.ask(&pool, request)?;
        Ok(0)
    }
}

/// Both are datasets below one pool's own.
fn check(from: &str, to: &str) -> Result<()> {
    let (pool, other) = (names::pool_of(from)?, names::pool_of(to)?);
    if pool == from {
        return Err(usage(format!(
            "'{from}' is a pool's own dataset and keeps its name: 'tarn pool export {from}', then 'tarn pool import -N \
             NEWNAME {from}' renames a pool"
        )));
    }
    if other == to {
        return Err(usage(format!(
            "'{to}' is the name of a pool: write all of the new name, as in {pool}/NAME"
        )));
    }
    if pool != other {
        return Err(usage(format!(
            "'{from}' cannot go to another pool ('{other}'): make a dataset there, and copy the files"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_renamed_is_told() {
        assert!(check("tank/a", "tank/b/c").is_ok());
        for (from, to, needle) in [
            ("tank", "tank/a", "import -N"),
            ("tank/a", "b", "as in tank/NAME"),
            ("tank/a", "tank", "as in tank/NAME"),
            ("tank/a", "other/a", "copy the files"),
            ("tank/a", "tank/..", "letters"),
        ] {
            let error = check(from, to).unwrap_err().to_string();
            assert!(error.contains(needle), "{from} {to}: {error}");
        }
    }
}
