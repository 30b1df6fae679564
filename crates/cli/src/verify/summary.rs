//! All schedules of an algorithm and a collective in one row.

use super::case::{Case, Row, buffers};
use crate::{numbers::Set, table};
use herringbone::Collective;
use std::fmt::Display;

const COLUMNS: [&str; 7] =
    ["algorithm", "collective", "ranks", "schedules", "order", "rounds", "bytes/worker"];

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
    // What all rows would say stands in the line below the table.
    let is_said = |column: &&str| *column != "collective" || of_one(rows).is_none();
    let columns: Vec<&str> = COLUMNS.into_iter().filter(|column| is_said(column)).collect();
    let rows = kinds.iter().map(|rows| {
        let cells = COLUMNS.into_iter().zip(cells(rows)).filter(|(column, _)| is_said(column));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>()
    });
    table::text(&columns, &["ranks", "schedules", "rounds", "bytes/worker"], rows)
}

/// The collective of all rows, if it is one.
pub(super) fn of_one(rows: &[&Row]) -> Option<Collective> {
    let collective = rows.first()?.case.collective;
    rows.iter().all(|row| row.case.collective == collective).then_some(collective)
}

fn cells(rows: &[&Row]) -> [String; 7] {
    let Case { algorithm, collective, .. } = &rows[0].case;
    let proofs: Vec<_> = rows.iter().filter_map(|row| row.proof.as_ref().ok()).collect();
    let costs = || proofs.iter().map(|(_, cost)| cost);
    [
        // In two lines, so that the table fits a narrow terminal.
        algorithm.to_string().replacen('(', "\n(", 1),
        collective.to_string(),
        Set::of(rows.iter().map(|row| row.case.ranks)).to_string(),
        rows.len().to_string(),
        alike(proofs.iter().map(|(verified, _)| verified.order().to_string())),
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
