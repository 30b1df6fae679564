//! Tables for people: columns that line up, a line under the head.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, presets};
use rustix::termios::tcgetwinsize;
use std::io::stdout;

/// A table with these columns.
pub(crate) fn new(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─')));
    table.set_header(columns);
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 1));
    });
    table
}

/// Aligns those of the table's `columns` that are named.
pub(crate) fn align(table: &mut Table, columns: &[&str], named: &[&str], alignment: CellAlignment) {
    for (index, _) in columns.iter().enumerate().filter(|(_, name)| named.contains(*name)) {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(alignment);
        }
    }
}

/// Where standard output is a terminal, has cells take several lines rather than the table more than its width.
pub(crate) fn fit(table: &mut Table) {
    if let Ok(size) = tcgetwinsize(stdout())
        && size.ws_col > 0
    {
        table.set_width(size.ws_col).set_content_arrangement(ContentArrangement::Dynamic);
    }
}
