//! Credentials that are found anew when the store takes the old ones no more.
//!
//! Tools that hand out short-lived credentials write the next ones where the last were, and instance metadata has them
//! when it is asked. `object_store` renews what says when it expires; here the rest is done: files are read again, and
//! what was taken back before its time is fetched anew.

use crate::Result;
use object_store::client::CredentialProvider;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// They are found anew at most so often.
const APART: Duration = Duration::from_millis(500);

pub(crate) type Provider<C> = Arc<dyn CredentialProvider<Credential = C>>;

/// Gives credentials from the provider that was found last.
pub(crate) struct Renewing<C> {
    find: Box<dyn Fn() -> Result<Provider<C>> + Send + Sync>,
    found: Mutex<(Instant, Provider<C>)>,
}

impl<C> Renewing<C> {
    /// `find` looks in every place for credentials, and asks nobody on the network.
    pub fn new(find: impl Fn() -> Result<Provider<C>> + Send + Sync + 'static) -> Result<Arc<Renewing<C>>> {
        let found = Mutex::new((Instant::now(), find()?));
        Ok(Arc::new(Renewing { find: Box::new(find), found }))
    }
}

/// What an answer of the store sets off.
pub(crate) trait Renew: Send + Sync {
    /// The store does not take the credentials.
    fn renew(&self);
}

impl<C: 'static> Renew for Renewing<C> {
    fn renew(&self) {
        let mut found = self.found.lock();
        if found.0.elapsed() < APART {
            return;
        }
        found.0 = Instant::now();
        match (self.find)() {
            Ok(provider) => found.1 = provider,
            // A file that is being rewritten may lack them for a moment: the old ones stay.
            Err(why) => tracing::debug!(%why, "no new credentials were found"),
        }
    }
}

impl<C> std::fmt::Debug for Renewing<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewing").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl<C: Send + Sync + 'static> CredentialProvider for Renewing<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let provider = self.found.lock().1.clone();
        provider.get_credential().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use object_store::StaticCredentialProvider;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[tokio::test(start_paused = true)]
    async fn the_last_that_were_found_are_given() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let renewing = Renewing::new(move || match counted.fetch_add(1, SeqCst) {
            1 => Err(Error::Config("none now".into())),
            n => Ok(Arc::new(StaticCredentialProvider::new(n)) as Provider<u32>),
        })
        .unwrap();
        let given = async || *renewing.get_credential().await.unwrap();
        assert_eq!(given().await, 0);
        // Many requests fail at once for one reason.
        renewing.renew();
        assert_eq!((given().await, count.load(SeqCst)), (0, 1));
        tokio::time::advance(APART).await;
        renewing.renew();
        assert_eq!((given().await, count.load(SeqCst)), (0, 2));
        tokio::time::advance(APART).await;
        renewing.renew();
        assert_eq!((given().await, count.load(SeqCst)), (2, 3));
    }
}
