//! The status of a table's range, for people.

use super::TableRange;
use crate::core::session::status::{TABLE_WORKERS, TableStatus, TableWorker};

impl TableRange {
    /// `is_present` says of a worker's life whether it has a connection with this server.
    pub(super) fn status(
        &self,
        name: &str,
        range: u32,
        is_present: impl Fn(u32, u64) -> bool,
    ) -> TableStatus {
        let spec = &self.spec;
        let clocks = self.state.worker_clocks().map(|clock| TableWorker {
            worker: clock.worker,
            step: clock.step,
            is_here: !clock.has_left && is_present(clock.worker, clock.life),
            has_left: clock.has_left,
        });
        let mut workers: Vec<TableWorker> = clocks.collect();
        let present = workers.iter().filter(|worker| worker.is_here).count() as u32;
        workers.sort_by_key(|worker| (worker.has_left, worker.step, worker.worker));
        workers.truncate(TABLE_WORKERS);
        let rows = if spec.sparse { "sparse" } else { "dense" };
        TableStatus {
            name: name.to_owned(),
            range,
            kind: format!("{rows} {} x {}, {}, {}", spec.dtype, spec.width, spec.consistency, self.optimizer),
            keys: self.keys.end - self.keys.start,
            rows: self.rows.held(),
            bytes: self.used,
            version: self.state.version(),
            waiting: self.state.waiting() as u64,
            not_numbers: self.not_numbers,
            present,
            workers,
            hot: self.hot.hottest(),
        }
    }
}
