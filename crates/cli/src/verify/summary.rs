//! All schedules of an algorithm and a collective in one row.

use super::case::{Case, Row, buffers};
use crate::{numbers::Set, table};
use comfy_table::CellAlignment;
use std::fmt::Display;

const COLUMNS: [&str; 8] =
    ["algorithm", "collective", "ranks", "schedules", "order", "restartable", "rounds", "bytes/worker"];

/// One row for all schedules of an algorithm and a collective, of rows that are proven.
pub(super) fn table(rows: &[&Row]) -> String {
    let mut kinds: Vec<Vec<&Row>> = Vec::new();
    let kind = |row: &Row| (row.case.algorithm.clone(), row.case.collective);
    for row in rows {
        match kinds.iter_mut().find(|rows| kind(rows[0]) == kind(row)) {
            Some(rows) => rows.push(row),
            None => kinds.push(vec![row]),
        }
    }
    let mut table = table::new(&COLUMNS);
    table.add_rows(kinds.iter().map(|rows| cells(rows)));
    table::align(
        &mut table,
        &COLUMNS,
        &["ranks", "schedules", "rounds", "bytes/worker"],
        CellAlignment::Right,
    );
    table::fitted(table)
}

fn cells(rows: &[&Row]) -> [String; 8] {
    let Case { algorithm, collective, .. } = &rows[0].case;
    let proofs: Vec<_> = rows.iter().filter_map(|row| row.proof.as_ref().ok()).collect();
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let costs = || proofs.iter().map(|(_, cost)| cost);
    [
        algorithm.to_string(),
        collective.to_string(),
        Set::of(rows.iter().map(|row| row.case.ranks)).to_string(),
        rows.len().to_string(),
        alike(proofs.iter().map(|(verified, _)| verified.order().to_string())),
        alike(rows.iter().map(|row| row.restartable().map_or("-", yes).to_owned())),
        span(costs().map(|cost| cost.rounds.to_string()), costs().map(|cost| f64::from(cost.rounds))),
        span(costs().map(|cost| format!("{:.3}", buffers(cost))), costs().map(buffers)) + " K",
    ]
}

/// What all say, or that they differ.
fn alike(mut texts: impl Iterator<Item = String>) -> String {
    let first = texts.next().unwrap_or_default();
    if texts.all(|text| text == first) { first } else { "varies".to_owned() }
}

/// The texts of the least and the largest value.
fn span(texts: impl Iterator<Item = impl Display>, values: impl Iterator<Item = f64>) -> String {
    let mut each: Vec<(f64, String)> = values.zip(texts.map(|text| text.to_string())).collect();
    each.sort_by(|a, b| a.0.total_cmp(&b.0));
    match &each[..] {
        [(_, least), .., (_, most)] if least != most => format!("{least}..{most}"),
        [(_, only), ..] => only.clone(),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_both_ends_and_one_value_has_none() {
        let span = |values: &[u32]| span(values.iter(), values.iter().map(|value| f64::from(*value)));
        assert_eq!([span(&[10, 9, 12]), span(&[4, 4]), span(&[])], ["9..12", "4", ""]);
        assert_eq!(alike(["yes", "no"].into_iter().map(str::to_owned)), "varies");
    }
}
