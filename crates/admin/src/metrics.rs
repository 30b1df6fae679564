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
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::thread;

    fn summed() -> Vec<Communicator> {
        let ranks = herringbone::local(2).unwrap();
        thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(|| rank.all_reduce(&mut vec![1.0_f32; 1000], ReduceOp::Sum).unwrap());
            }
        });
        ranks
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
        let (outlook, ranks) = (Outlook::new(), summed());
        outlook.add(JobView::of(&ranks[1]));
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
        let operations = |text: &str| {
            text.lines().find(|line| line.starts_with("herringbone_operations_total")).map(str::to_owned)
        };
        assert_eq!(operations(&after), operations(&text));
        assert!(!after.contains("herringbone_ranks"));
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
