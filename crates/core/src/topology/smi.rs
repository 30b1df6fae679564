//! The text of `nvidia-smi topo -m`, in the spellings that people publish: tabs or spaces, colours, affinities in any column,
//! legends, rows that are cut.

use super::text::{Position, TextWord, lines_of_words, shown};
use super::{LinkKind, NodeKind, Topology, TopologyError, TopologyLink, TopologyNode, links};
use alloc::{collections::BTreeMap, format, string::String, vec, vec::Vec};

const LINKS: &str = "X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS";

/// Whether a line of the text can be the head of such a table.
pub(super) fn is_header_in(text: &str) -> bool {
    lines_of_words(text).iter().any(|words| is_header(words))
}

/// A head names GPUs, and has no cell.
fn is_header(words: &[TextWord]) -> bool {
    words.iter().any(|word| is_gpu(&word.text))
        && words.iter().all(|word| word.text != "X")
        && words.iter().all(|word| LinkKind::of_text(&word.text).is_none())
}

fn is_gpu(name: &str) -> bool {
    numbered(name, "GPU")
}

fn numbered(name: &str, before: &str) -> bool {
    let number = name.strip_prefix(before).unwrap_or("");
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The table while it is read.
struct Table {
    names: Vec<String>,
    /// By row and column.
    cells: BTreeMap<(usize, usize), LinkKind>,
    rows: Vec<bool>,
    warnings: Vec<String>,
}

pub(super) fn read(text: &str) -> Result<Topology, TopologyError> {
    let lines = lines_of_words(text);
    let head = lines.iter().position(|words| is_header(words)).unwrap_or(0);
    let mut table = Table::new(&lines[head])?;
    let mut devices = BTreeMap::new();
    let mut in_legend = false;
    for words in &lines[head + 1..] {
        let Some(first) = words.first() else { continue };
        let row = table.names.iter().position(|name| *name == first.text);
        match row {
            Some(row) if !in_legend => table.read_row(row, words)?,
            _ if first.text.starts_with("Legend") => in_legend = true,
            _ if words.len() == 2 && first.text.ends_with(':') => {
                devices.insert(first.text.trim_end_matches(':').into(), words[1].text.clone());
            }
            _ if in_legend || first.text.starts_with("MIG") => {}
            // A second table, of another machine.
            _ if is_header(words) => break,
            _ => table.objects_to(first)?,
        }
    }
    let end = Position { line: lines.len().max(1), column: 1 };
    if let Some(missing) = table.missing_gpu() {
        return Err(end.error("the end of the text", format!("the row of {}", table.names[missing])));
    }
    Ok(table.topology(&devices))
}

impl Table {
    fn new(head: &[TextWord]) -> Result<Self, TopologyError> {
        let mut names: Vec<String> = vec![];
        for word in head {
            let text = word.text.as_str();
            let is_affinity = matches!(text, "CPU" | "NUMA" | "GPU" | "ID") || text.contains("Affinity");
            if is_affinity {
                continue;
            }
            if names.contains(&word.text) {
                return Err(word.at.error(format!("{} again", shown(text)), "a name for each column"));
            }
            names.push(word.text.clone());
        }
        let rows = vec![false; names.len()];
        Ok(Self { names, cells: BTreeMap::new(), rows, warnings: vec![] })
    }

    /// Takes the cells of a row: each link belongs to the next column; affinities do not count, wherever they stand.
    fn read_row(&mut self, row: usize, words: &[TextWord]) -> Result<(), TopologyError> {
        let [first, cells @ ..] = words else { return Ok(()) };
        if core::mem::replace(&mut self.rows[row], true) {
            return Err(first.at.error(format!("the row of {} again", first.text), "one row for each node"));
        }
        let mut column = 0;
        for word in cells {
            if column == self.names.len() {
                break;
            }
            let text = word.text.as_str();
            match (text, LinkKind::of_text(text)) {
                ("X", _) if column == row => {}
                ("X", _) => {
                    let found = format!("X in the column of {}", self.names[column]);
                    return Err(word.at.error(found, "X where a node meets itself"));
                }
                (_, Some(_)) if column == row => {
                    let found = format!("{} in the column of its own", shown(text));
                    return Err(word.at.error(found, "X where a node meets itself"));
                }
                (_, Some(kind)) if kind != LinkKind::Given => {
                    self.cells.insert((row, column), kind);
                }
                _ if is_affinity(text) => continue,
                _ if self.is_needed(row, column) => {
                    return Err(word.at.error(shown(text), LINKS));
                }
                _ => {
                    self.warn_of_cut(row, column);
                    return Ok(());
                }
            }
            column += 1;
        }
        if let Some(missing) = (column..self.names.len()).find(|column| self.is_needed(row, *column)) {
            let last = words.last().unwrap_or(first);
            let end = Position { column: last.at.column + last.text.chars().count(), ..last.at };
            let expected = format!("a link of {} to {}: {LINKS}", self.names[row], self.names[missing]);
            return Err(end.error("the end of the row", expected));
        }
        if column < self.names.len() {
            self.warn_of_cut(row, column);
        }
        Ok(())
    }

    /// Whether plans need a cell: those between GPUs.
    fn is_needed(&self, row: usize, column: usize) -> bool {
        is_gpu(&self.names[row]) && is_gpu(&self.names[column])
    }

    fn warn_of_cut(&mut self, row: usize, column: usize) {
        let (row, column) = (&self.names[row], &self.names[column]);
        self.warnings
            .push(format!("the row of {row} is cut before {column}: links of NICs might be missing"));
    }

    fn missing_gpu(&self) -> Option<usize> {
        (0..self.names.len()).find(|row| is_gpu(&self.names[*row]) && !self.rows[*row])
    }

    /// A line that is no row is in the way while rows of GPUs are missing.
    fn objects_to(&self, first: &TextWord) -> Result<(), TopologyError> {
        match self.missing_gpu() {
            Some(missing) => {
                Err(first.at.error(shown(&first.text), format!("the row of {}", self.names[missing])))
            }
            None => Ok(()),
        }
    }

    fn topology(mut self, devices: &BTreeMap<String, String>) -> Topology {
        let cut = (0..self.names.len()).filter(|row| !self.rows[*row]);
        let lost: Vec<&str> = cut.map(|row| self.names[row].as_str()).collect();
        if !lost.is_empty() {
            self.warnings.push(format!("the text has no row of {}", lost.join(", ")));
        }
        let node = |name: &String| TopologyNode {
            name: name.clone(),
            kind: if is_gpu(name) { NodeKind::Gpu } else { NodeKind::Nic },
            device: devices.get(name).cloned(),
        };
        let nodes: Vec<TopologyNode> = self.names.iter().map(node).collect();
        let mut found = vec![];
        for from in 0..nodes.len() {
            for to in (0..nodes.len()).filter(|to| *to != from) {
                // What one row lacks another has.
                let kind = self.cells.get(&(from, to)).or_else(|| self.cells.get(&(to, from)));
                if let Some(kind) = kind {
                    let bandwidth = kind.bandwidth().unwrap_or(0.0);
                    found.push(TopologyLink { from, to, kind: *kind, bandwidth, weight: 0.0, latency: None });
                }
            }
        }
        links::assign_weights(&nodes, &mut found);
        Topology { nodes, links: found, warnings: self.warnings, ..Topology::default() }
    }
}

/// Whether a word can be of an affinity: lists of numbers, masks, `N/A`.
fn is_affinity(text: &str) -> bool {
    let of_lists = |c: char| c.is_ascii_hexdigit() || ",-x:.".contains(c);
    text == "N/A" || text.starts_with(|c: char| c.is_ascii_digit() || c == '-') && text.chars().all(of_lists)
}
