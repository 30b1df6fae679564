//! `/metrics`: figures of this process in the text formats of Prometheus.

#[cfg(test)]
mod checked;
mod gather;

mod series;
mod text;

use crate::http::response::PageResponse;
use crate::outlook::Outlook;

/// The text format of Prometheus, which every tool reads.
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
/// That of OpenMetrics.
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures, in the format that a client asks for.
pub(crate) fn response(outlook: &Outlook, accept: &str) -> PageResponse {
    let families = gather::families(outlook);
    match accept.contains("application/openmetrics-text") {
        true => PageResponse::page(OPEN, text::open(families).into_bytes()),
        false => PageResponse::page(CLASSIC, text::classic(families).into_bytes()),
    }
}

/// The figures in Prometheus's own format.
pub(crate) fn text(outlook: &Outlook) -> String {
    text::classic(gather::families(outlook))
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::server::{Server, ServerOptions};
    use herringbone::table::TableOptions;
    use herringbone::{Communicator, JobView, ReduceOp};
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::thread;

    /// Two ranks. The outlook shows the second one.
    fn shown(outlook: &Outlook) -> Vec<Communicator> {
        let ranks = herringbone::local(2).unwrap();
        outlook.add(JobView::of(&ranks[1]));
        ranks[1].listen(outlook.events().listener(BTreeMap::new()));
        ranks
    }

    fn all(ranks: &[Communicator], does: impl Fn(&Communicator) + Sync) {
        let does = &does;
        thread::scope(|scope| ranks.iter().for_each(|rank| drop(scope.spawn(move || does(rank)))));
    }

    fn sum(ranks: &[Communicator]) {
        all(ranks, |rank| rank.all_reduce(&mut vec![1.0_f32; 1000], ReduceOp::Sum).unwrap());
    }

    /// The lines of a series.
    fn lines<'a>(text: &'a str, series: &str) -> Vec<&'a str> {
        text.lines().filter(|line| line.starts_with(series)).collect()
    }

    /// What Prometheus's own checker says, where a machine has it.
    fn promtool(text: &str) -> Option<String> {
        let mut command = Command::new("promtool");
        let command = command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut promtool = command.stdout(Stdio::piped()).spawn().ok()?;
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        Some(String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    }

    fn check(text: &str) {
        assert_eq!(checked::problems(text), Vec::<String>::new(), "{text}");
        if let Some(said) = promtool(text) {
            assert_eq!(said, "", "{text}");
        }
    }

    #[test]
    fn the_figures_of_a_rank_are_right_and_well_formed() {
        let outlook = Outlook::new();
        let ranks = shown(&outlook);
        sum(&ranks);
        let text = text(&outlook);
        check(&text);
        for line in [
            "herringbone_ranks 2.0",
            "herringbone_operations_total{collective=\"all_reduce\",algorithm=\"one_shot\"} 1.0",
            "herringbone_in_flight 0.0",
        ] {
            assert!(text.lines().any(|is| is == line), "{line}:\n{text}");
        }
        assert!(text.contains(",rank=\"1\"} 1"), "{text}");
        // What was counted stays when the job is over.
        drop(ranks);
        let after = super::text(&outlook);
        check(&after);
        let operations = "herringbone_operations_total";
        assert_eq!(lines(&after, operations), lines(&text, operations));
        assert!(!after.contains("herringbone_ranks"));
    }

    #[test]
    fn operations_count_though_nobody_looked_before_the_job_was_over() {
        let outlook = Outlook::new();
        for jobs in 1..=3 {
            let ranks = shown(&outlook);
            sum(&ranks);
            drop(ranks);
            let expected = format!(
                "herringbone_operations_total{{collective=\"all_reduce\",algorithm=\"one_shot\"}} {jobs}.0"
            );
            assert_eq!(lines(&text(&outlook), "herringbone_operations_total"), [expected]);
        }
    }

    #[test]
    fn messages_are_no_broadcasts() {
        let outlook = Outlook::new();
        let ranks = shown(&outlook);
        let (short, long) = ([1.0_f32], vec![1.0_f32; 300_000]);
        all(&ranks, |rank| {
            let (mut got, mut all) = ([0.0_f32], vec![0.0_f32; 300_000]);
            match rank.rank() {
                0 => {
                    rank.send(&short, 1, 7).unwrap();
                    rank.send(&long, 1, 7).unwrap();
                    rank.recv(&mut got, 1, 7).unwrap();
                }
                _ => {
                    rank.recv(&mut got, 0, 7).unwrap();
                    rank.recv(&mut all, 0, 7).unwrap();
                    rank.send(&short, 0, 7).unwrap();
                }
            }
        });
        let text = text(&outlook);
        check(&text);
        let of = |collective: &str| -> f64 {
            let found = lines(&text, &format!("herringbone_operations_total{{collective=\"{collective}\""));
            found.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
        };
        assert_eq!(["receive", "send", "broadcast"].map(of), [2.0, 1.0, 0.0], "{text}");
        // A message that an operation of its own carries has that one's algorithm.
        let whole = lines(&text, "herringbone_operations_total{collective=\"receive\"");
        assert_eq!(whole.iter().filter(|line| line.contains("\"announced\"")).count(), 1, "{text}");
        assert_eq!(whole.len(), 2, "{text}");
    }

    #[test]
    fn the_figures_of_a_server_are_well_formed() {
        let options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
        let server =
            Server::bind(ServerOptions { tables: Some(TableOptions::default()), ..options }).unwrap();
        let outlook = Outlook::new();
        outlook.set_server(server.view());
        let text = text(&outlook);
        check(&text);
        for line in ["herringbone_reducer_jobs 0.0", "herringbone_table_memory_bytes 0.0"] {
            assert!(text.lines().any(|is| is == line), "{line}:\n{text}");
        }
    }
}
