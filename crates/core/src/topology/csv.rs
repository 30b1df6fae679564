//! A matrix of weights as CSV: commas, semicolons, tabs or spaces; names in the first line and column, if they are there.

use super::text::{Position, TextWord, words};
use super::{MOST_NODES, Topology, TopologyError};
use alloc::{format, string::String, vec, vec::Vec};

pub(super) fn read(text: &str) -> Result<Topology, TopologyError> {
    let is_gap = |c: char| matches!(c, ',' | ';') || c.is_whitespace();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    let mut rows: Vec<Vec<TextWord>> = lines.map(|(at, line)| words(line, at + 1, is_gap)).collect();
    rows.retain(|row| !row.is_empty());
    let Some(first) = rows.first() else {
        let expected = "the text of nvidia-smi topo -m, NCCL's XML, or a matrix as JSON or CSV";
        return Err(Position { line: 1, column: 1 }.error("nothing", expected));
    };
    let has_head = first.iter().all(|word| word.text.parse::<f64>().is_err());
    let mut names = if has_head { rows.remove(0) } else { vec![] };
    let count = rows.len();
    if !(1..=MOST_NODES).contains(&count) {
        let at = Position { line: 1, column: 1 };
        return Err(at.error(format!("{count} rows of numbers"), format!("1 to {MOST_NODES} rows")));
    }
    // A name above the column of names.
    if names.len() == count + 1 {
        names.remove(0);
    }
    let mut weights = vec![];
    for row in &rows {
        let named = row.len() == count + 1 && row[0].text.parse::<f64>().is_err();
        let numbers = if named { &row[1..] } else { &row[..] };
        if numbers.len() != count {
            let found = format!("a row of {} numbers", numbers.len());
            return Err(row[0].at.error(found, format!("{count} numbers, as there are rows")));
        }
        weights.push(numbers.iter().map(TextWord::number).collect::<Result<Vec<f64>, _>>()?);
    }
    let names: Vec<String> = match names.len() == count {
        true => names.into_iter().map(|name| name.text).collect(),
        false => vec![],
    };
    Ok(Topology::of_matrix(&names, &weights, None))
}
