//! `tarn check`: one dataset after the other.

use super::Node;
use crate::control::Reply;
use crate::control::report::CheckReport;
use crate::progress::Sink;
use crate::wiring::Checking;
use anyhow::Result;
use std::sync::Arc;

impl Node {
    /// Checks one dataset, or all; what is dirty is written first.
    pub(super) async fn check(
        self: &Arc<Self>,
        name: Option<&str>,
        how: Checking,
        sink: &dyn Sink,
    ) -> Result<Reply> {
        let rows = match name {
            Some(name) => vec![self.row(name)?],
            None => self.rows(),
        };
        let mut report = CheckReport::default();
        if name.is_none() {
            let _admin = self.turn(sink).await?;
            (report.labels_repaired, report.labels_wrong) = self.pool.scrub_labels().await?;
        }
        for row in rows {
            // Only opening and closing keep others out: a check may be long.
            let dataset = {
                let _admin = self.admin.lock().await;
                self.check_serving()?;
                self.dataset(&row).await?
            };
            let checked = dataset.check(how, sink).await;
            {
                let _admin = self.admin.lock().await;
                drop(dataset);
                self.close_unmounted(&row, sink).await?;
            }
            report.datasets.push(checked?);
        }
        Ok(Reply::Check(report))
    }
}
