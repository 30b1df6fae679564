//! All series of a process: names end in base units, and labels have few values.

/// What a series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesKind {
    Counter,
    Gauge,
    Histogram,
}

/// A series.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) kind: SeriesKind,
    /// The names of its labels.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

const fn series(
    name: &'static str,
    kind: SeriesKind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Series {
    Series { name, kind, labels, help }
}

use SeriesKind::{Counter, Gauge, Histogram};

pub(crate) const BUILD: Series =
    series("herringbone_build_info", Gauge, &["version"], "Build of this process; always 1.");
pub(crate) const JOB: Series = series(
    "herringbone_job_info",
    Gauge,
    &["id", "name", "rank"],
    "Job of this rank: its number, its name in the launcher, and the rank; always 1.",
);
pub(crate) const RANKS: Series =
    series("herringbone_ranks", Gauge, &[], "Ranks of the job; after a shrink, the remaining ranks.");
pub(crate) const REDUCERS: Series =
    series("herringbone_reducers", Gauge, &[], "Reducers that the job had when it formed.");
pub(crate) const OPERATIONS: Series = series(
    "herringbone_operations_total",
    Counter,
    &["collective", "algorithm"],
    "Operations, and messages of the program, that this rank has completed.",
);
pub(crate) const SECONDS: Series = series(
    "herringbone_operation_seconds",
    Histogram,
    &["collective", "algorithm"],
    "Time of successful operations, from the call to the result.",
);
pub(crate) const PEER_WAITS: Series = series(
    "herringbone_peer_wait_seconds_total",
    Counter,
    &["peer"],
    "Time that operations waited for a member's messages or free buffers, summed over operations: who is slow.",
);
pub(crate) const PEER_WAIT: Series = series(
    "herringbone_peer_wait_duration_seconds",
    Histogram,
    &["peer"],
    "Length of each wait of an operation for a member.",
);
pub(crate) const FAULTS: Series = series(
    "herringbone_faults_total",
    Counter,
    &["kind"],
    "Suspected or lost members, fences of groups, and failed operations, by the name of the error.",
);
pub(crate) const FAILED: Series = series(
    "herringbone_operations_failed_total",
    Counter,
    &[],
    "Operations that failed on this rank, and calls that did not become operations; failed messages are only in herringbone_faults_total.",
);
pub(crate) const BYTES: Series = series(
    "herringbone_bytes_total",
    Counter,
    &["transport", "peers", "direction"],
    "Payload bytes exchanged with workers or reducers, through shared memory or sockets.",
);
pub(crate) const WAITING: Series = series(
    "herringbone_wait_seconds_total",
    Counter,
    &[],
    "Time that callers waited for operations, summed over threads.",
);
pub(crate) const BUSY: Series = series(
    "herringbone_in_flight_seconds_total",
    Counter,
    &[],
    "Time in flight of successful operations, summed over operations.",
);
pub(crate) const IN_FLIGHT: Series = series(
    "herringbone_in_flight",
    Gauge,
    &[],
    "Operations in flight whose callers wait; on a reducer, all operations in flight.",
);
pub(crate) const OLDEST: Series = series(
    "herringbone_oldest_in_flight_seconds",
    Gauge,
    &[],
    "Age of the oldest operation in flight; 0 without one.",
);
pub(crate) const STAGED: Series =
    series("herringbone_staging_bytes", Gauge, &[], "Bytes of staging memory in use.");
pub(crate) const STAGING: Series =
    series("herringbone_staging_limit_bytes", Gauge, &[], "Bytes of staging memory in total.");
pub(crate) const CONNECTIONS: Series =
    series("herringbone_connections_total", Counter, &[], "Socket connections that operations have needed.");
pub(crate) const REBALANCED: Series = series(
    "herringbone_rebalanced_total",
    Counter,
    &[],
    "How often plans changed because the port of a host became slow or fast (HERRINGBONE_REBALANCE).",
);
pub(crate) const LINKS: Series = series(
    "herringbone_links",
    Gauge,
    &["state"],
    "Links to other processes, by state: shm, tcp, wanted or lost.",
);
pub(crate) const GROUPS: Series = series("herringbone_groups", Gauge, &[], "Groups that include this rank.");
pub(crate) const GENERATION: Series = series(
    "herringbone_group_generation",
    Gauge,
    &[],
    "Fences of the group of all ranks, or of the remaining ones: each is a failure that it survived.",
);
pub(crate) const FIGURES_AGE: Series = series(
    "herringbone_figures_age_seconds",
    Gauge,
    &[],
    "Age of these figures: above 0 if the engine was too busy to give new ones.",
);
pub(crate) const UNWRITTEN: Series = series(
    "herringbone_metrics_file_errors_total",
    Counter,
    &[],
    "How often the file in the folder HERRINGBONE_METRICS_FILE could not be written.",
);
pub(crate) const SERVED_NOW: Series =
    series("herringbone_reducer_jobs", Gauge, &[], "Jobs that this reducer serves.");
pub(crate) const SERVED: Series =
    series("herringbone_reducer_jobs_served_total", Counter, &[], "Jobs that this reducer has served.");
pub(crate) const TABLE_KEYS: Series = series(
    "herringbone_table_keys",
    Gauge,
    &["table", "range"],
    "Keys in a range of a table on this server.",
);
pub(crate) const TABLE_ROWS: Series = series(
    "herringbone_table_rows",
    Gauge,
    &["table", "range"],
    "Rows in a range of a table on this server.",
);
pub(crate) const TABLE_BYTES: Series = series(
    "herringbone_table_bytes",
    Gauge,
    &["table", "range"],
    "Memory of a range of a table on this server.",
);
pub(crate) const TABLE_WAITING: Series = series(
    "herringbone_table_waiting_pulls",
    Gauge,
    &["table", "range"],
    "Pulls that wait for pushes from workers.",
);
pub(crate) const TABLE_NAN: Series = series(
    "herringbone_table_nan_pushes_total",
    Counter,
    &["table", "range"],
    "Pushes that contained a NaN.",
);
pub(crate) const TABLE_STEP: Series = series(
    "herringbone_table_worker_step",
    Gauge,
    &["table", "range", "worker"],
    "Step that a worker of a table has reached.",
);
pub(crate) const TABLE_MEMORY: Series =
    series("herringbone_table_memory_bytes", Gauge, &[], "Memory of all tables on this server.");
pub(crate) const TABLE_LIMIT: Series =
    series("herringbone_table_memory_limit_bytes", Gauge, &[], "Most memory for the tables on this server.");

/// All of them, in the order in which they are shown.
#[cfg(test)]
pub(crate) const ALL: [&Series; 34] = [
    &BUILD,
    &JOB,
    &RANKS,
    &REDUCERS,
    &GROUPS,
    &GENERATION,
    &FIGURES_AGE,
    &IN_FLIGHT,
    &OLDEST,
    &STAGED,
    &STAGING,
    &LINKS,
    &OPERATIONS,
    &SECONDS,
    &FAILED,
    &BYTES,
    &WAITING,
    &BUSY,
    &CONNECTIONS,
    &REBALANCED,
    &PEER_WAITS,
    &PEER_WAIT,
    &FAULTS,
    &UNWRITTEN,
    &SERVED_NOW,
    &SERVED,
    &TABLE_KEYS,
    &TABLE_ROWS,
    &TABLE_BYTES,
    &TABLE_WAITING,
    &TABLE_NAN,
    &TABLE_STEP,
    &TABLE_MEMORY,
    &TABLE_LIMIT,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn file(path: &str) -> String {
        fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    /// The page of the documentation.
    fn page() -> String {
        let row = |series: &&Series| {
            let Series { name, kind, labels, help } = **series;
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let kind = match kind {
                Counter => "counter",
                Gauge => "gauge",
                Histogram => "histogram",
            };
            format!("| `{name}` | {kind} | {} | {} |\n", labels.join(", "), help.trim_end_matches('.'))
        };
        let head = "# Series of metrics\nProcesses serve these series for Prometheus ([Metrics](../metrics.md)). A test compares this table with \
                    the program.\n\n| series | type | labels | meaning |\n|---|---|---|---|\n";
        ALL.iter().map(row).fold(head.to_owned(), |page, row| page + &row)
    }

    /// OpenMetrics writes a counter's family without its end.
    #[test]
    fn no_two_families_have_one_name() {
        let names = ALL.map(|series| series.name.trim_end_matches("_total"));
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
        }
    }

    #[test]
    fn the_documentation_has_all_series() {
        let page = page();
        assert!(
            file("docs/reference/metrics.md") == page,
            "docs/reference/metrics.md needs this text:

{page}"
        );
    }

    #[test]
    fn the_dashboard_shows_series_that_there_are() {
        let text = file("deploy/grafana/herringbone.json");
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let words = text.split(|letter| !is_letter(letter)).filter(|word| word.starts_with("herringbone_"));
        let parts = |series: &Series| {
            let ends: &[&str] = if series.kind == Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
            ends.iter().map(|end| format!("{}{end}", series.name)).collect::<Vec<_>>()
        };
        let all: Vec<String> = ALL.iter().flat_map(|series| parts(series)).collect();
        let unknown: Vec<&str> = words.clone().filter(|word| !all.iter().any(|name| name == word)).collect();
        assert_eq!(unknown, Vec::<&str>::new());
        let missing: Vec<&str> = ALL
            .iter()
            .filter(|series| !words.clone().any(|word| parts(series).iter().any(|name| name == word)))
            .map(|series| series.name)
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
