//! A matrix of weights as CSV: commas, semicolons, tabs or spaces, with optional names in the first line and column.

use super::text::{Position, TextWord, shown, words};
use super::{MOST_NODES, Topology, TopologyError};
use alloc::{format, string::String, vec, vec::Vec};

const FORMATS: &str = "the text of nvidia-smi topo -m, NCCL's XML, or a matrix as JSON or CSV";

pub(super) fn read(text: &str) -> Result<Topology, TopologyError> {
    let is_gap = |c: char| matches!(c, ',' | ';') || c.is_whitespace();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('#'));
    let mut rows: Vec<Vec<TextWord>> = lines.map(|(at, line)| words(line, at + 1, is_gap)).collect();
    rows.retain(|row| !row.is_empty());
    let Some(first) = rows.first() else {
        return Err(Position { line: 1, column: 1 }.error("nothing", FORMATS));
    };
    let is_number = |word: &TextWord| word.text.parse::<f64>().is_ok();
    // Below names there are numbers at the ends of rows.
    if !rows.iter().any(|row| row.last().is_some_and(is_number)) {
        let word = first.iter().find(|word| !is_number(word)).unwrap_or(&first[0]);
        return Err(word.at.error(shown(&word.text), FORMATS));
    }
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
    let again = (1..names.len()).find(|at| names[..*at].iter().any(|known| known.text == names[*at].text));
    if let Some(name) = again.map(|at| &names[at]) {
        return Err(name.at.error(format!("{} again", shown(&name.text)), "a name that no other node has"));
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
