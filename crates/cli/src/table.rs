//! Tables for people: columns that line up, a line under the head.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Row, Table, presets};
use herringbone::core::session::is_unseen;
use rustix::termios::tcgetwinsize;
use std::io::stdout;

/// A text for a terminal: what of it people could not see, or would move other text about there, is an escape like `\u{1b}`. Lines stay
/// lines. Texts that come from the environment, such as settings, can have such characters.
pub(crate) fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => seen.push('\n'),
            hidden if is_unseen(hidden) => seen.extend(hidden.escape_default()),
            plain => seen.push(plain),
        }
    }
    seen
}

/// A table with these columns as text that fits the terminal. The columns named in `right` are right-aligned.
pub(crate) fn text<R: Into<Row>>(
    columns: &[&str],
    right: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> String {
    sentences(columns, right, &[], rows)
}

/// As [`text`], for rows with sentences: columns of these numbers have a width.
pub(crate) fn sentences<R: Into<Row>>(
    columns: &[&str],
    right: &[&str],
    widths: &[(usize, ColumnConstraint)],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = filled(columns, rows);
    for (index, _) in columns.iter().enumerate().filter(|(_, name)| right.contains(*name)) {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (column, width) in widths {
        table.column_mut(*column).map(|column| column.set_constraint(*width));
    }
    fitted(table)
}

fn filled<R: Into<Row>>(columns: &[&str], rows: impl IntoIterator<Item = R>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─')));
    table.set_header(columns);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    table.add_rows(rows);
    table
}

/// In a terminal with fewer columns a table of sentences breaks words.
const NARROW: u16 = 90;

/// The table as text, no wider than the terminal where standard output is one: cells take several lines, or, where it is
/// narrow, each row becomes a block of lines.
fn fitted(table: Table) -> String {
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0);
    at_width(table, size.map(|size| size.ws_col))
}

/// A line of words, in several lines where standard output is a terminal that is narrower; the following lines are indented.
pub(crate) fn wrapped(line: &str) -> String {
    let width = tcgetwinsize(stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    width.map_or_else(|| line.to_owned(), |width| in_lines(line, width))
}

fn in_lines(line: &str, width: usize) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in line.split_inclusive(' ') {
        let letters = word.trim_end().chars().count();
        if length > 0 && length + letters > width {
            lines.truncate(lines.trim_end().len());
            lines.push_str("\n  ");
            length = 2;
        }
        lines.push_str(word);
        length += word.chars().count();
    }
    lines
}

fn at_width(mut table: Table, width: Option<u16>) -> String {
    match width {
        None => table.to_string(),
        Some(width) if fits(&table, width) => table.to_string(),
        Some(width) if width < NARROW => stacked(&table, width),
        Some(width) => {
            table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
            table.to_string()
        }
    }
}

/// Whether it is no wider as it is.
fn fits(table: &Table, width: u16) -> bool {
    table.to_string().lines().all(|line| line.trim_end().chars().count() <= usize::from(width))
}

/// Every row as a block: each cell that has a text on a line of its own, behind its column's name.
fn stacked(table: &Table, width: u16) -> String {
    let blocks = table.row_iter().map(|row| {
        let mut block = Table::new();
        block.load_style(presets::NOTHING);
        let names = table.header().into_iter().flat_map(|names| names.cell_iter());
        let cells = names.zip(row.cell_iter()).filter(|(_, cell)| !cell.content().is_empty());
        block.add_rows(cells.map(|(name, cell)| [name.content(), cell.content()]));
        for (index, padding) in [(0, (0, 2)), (1, (0, 0))] {
            if let Some(column) = block.column_mut(index) {
                column.set_padding(padding);
            }
        }
        if let Some(names) = block.column_mut(0) {
            names.set_constraint(ColumnConstraint::ContentWidth);
        }
        block.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        block.to_string()
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let rows = [
            ["HERRINGBONE_STAGING_BYTES", "64M", "memory of each process for slots; the smallest counts"],
            ["HERRINGBONE_LOG", "warn", "what is said"],
        ];
        filled(&["name", "value", "meaning"], rows)
    }

    fn lines(width: Option<u16>) -> Vec<String> {
        at_width(table(), width).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_narrow_terminal_gets_blocks_without_broken_words() {
        let expected = [
            "name     HERRINGBONE_STAGING_BYTES",
            "value    64M",
            "meaning  memory of each process for",
            "         slots; the smallest counts",
            "",
            "name     HERRINGBONE_LOG",
            "value    warn",
            "meaning  what is said",
        ];
        assert_eq!(lines(Some(40)), expected);
    }

    #[test]
    fn a_narrow_one_gets_a_table_that_fits_and_no_names_of_empty_cells() {
        let small = filled(&["name", "value"], [["ranks", ""]]);
        assert!(at_width(small, Some(40)).contains('─'));
        let mut wide = table();
        wide.add_row(["HERRINGBONE_STORE", "", "where"]);
        let blocks = at_width(wide, Some(40));
        assert!(blocks.contains("HERRINGBONE_STORE") && blocks.matches("value").count() == 2, "{blocks}");
    }

    #[test]
    fn what_would_move_text_about_is_an_escape_and_lines_stay_lines() {
        assert_eq!(visible("wait: 3 \u{b5}s, \u{e9}\nnext"), "wait: 3 \u{b5}s, \u{e9}\nnext");
        assert_eq!(visible("a\u{1b}[31m\rb\u{202e}\u{9b}"), r"a\u{1b}[31m\rb\u{202e}\u{9b}");
    }

    #[test]
    fn a_line_of_words_is_no_wider_than_the_terminal() {
        assert_eq!(in_lines("weight      152 of all", 40), "weight      152 of all");
        assert_eq!(in_lines("root 0: 0-1 0-2 1-3", 13), "root 0: 0-1\n  0-2 1-3");
    }

    #[test]
    fn a_wide_one_gets_a_table() {
        let wide = lines(Some(100));
        assert_eq!(wide, lines(None));
        assert!(wide[0].starts_with(" name") && wide.len() == 4, "{wide:?}");
    }
}
