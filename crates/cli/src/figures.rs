//! `herringbone figures`: what articles say of sums of gradients, beside what Herringbone's schedules and simulations come to.

mod figure;
mod notes;
mod picture;
mod simulated;
mod trained;
mod vertex;
mod write;

use crate::{failure::Failure, outcome::Outcome, progress::LateBar};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use figure::Figure;
use std::{io::Write, path::PathBuf};

/// Regenerate the figures of articles about all-reduces and reduction servers, with the articles' numbers beside ours
///
/// DIR gets a page, index.md, and for each figure a picture, a table of the article's claims and the points of its curves. The table
/// says which numbers are predicted, which one was fitted, and why ours differ where they do. Only numbers of the articles' texts are
/// compared.
///
/// Every input of a figure is an option. The articles' numbers belong to the defaults.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FiguresOptions {
    /// The folder that the figures are written to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Only these figures
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = figure_name())]
    only: Vec<&'static KnownFigure>,
    /// One JSON object in place of the tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inputs: FigureInputs,
}

/// The inputs of all figures.
#[derive(Clone, Debug, PartialEq, clap::Args)]
struct FigureInputs {
    #[command(flatten)]
    vertex: vertex::VertexInputs,
    #[command(flatten)]
    notes: notes::NotesInputs,
}

/// A figure that can be asked for.
#[derive(Debug)]
struct KnownFigure {
    name: &'static str,
    make: fn(&FigureInputs) -> Result<Figure, Failure>,
}

/// All figures, in the order of the page.
static FIGURES: [KnownFigure; 2] = [
    KnownFigure { name: "vertex", make: |inputs| vertex::figure(&inputs.vertex) },
    KnownFigure { name: "notes", make: |inputs| notes::figure(&inputs.notes) },
];

fn figure_name() -> impl TypedValueParser<Value = &'static KnownFigure> {
    PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name))
        .try_map(|name| FIGURES.iter().find(|figure| figure.name == name).ok_or("no figure has this name"))
}

pub(crate) fn run(options: &FiguresOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let chosen = chosen(options);
    let progress = LateBar::of(chosen.len() as u64);
    let mut figures = Vec::with_capacity(chosen.len());
    for known in chosen {
        progress.tell(known.name);
        figures.push((known.make)(&options.inputs)?);
        progress.step();
    }
    drop(progress);
    let written = write::write(&options.folder, &figures)?;
    if options.json {
        writeln!(out, "{}", write::object(&figures))?;
        return Ok(Outcome::Passed);
    }
    for figure in &figures {
        writeln!(out, "{}", write::text(figure))?;
    }
    writeln!(out, "wrote {} files, first {}", written.len(), written[0].display())?;
    Ok(Outcome::Passed)
}

/// Those that are asked for, in the order of the page; all of them if none is named.
fn chosen(options: &FiguresOptions) -> Vec<&'static KnownFigure> {
    let is_asked = |known: &&KnownFigure| {
        options.only.is_empty() || options.only.iter().any(|one| one.name == known.name)
    };
    FIGURES.iter().filter(is_asked).collect()
}

#[cfg(test)]
mod tests;
