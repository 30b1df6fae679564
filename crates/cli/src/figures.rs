//! `herringbone figures`: numbers of articles about sums of gradients, compared with Herringbone's schedules and simulations.

mod fairring;
mod figure;
mod fitted;
mod notes;
mod picture;
mod simulated;
mod trained;
mod trees;
mod vertex;
mod write;

use crate::{failure::Failure, outcome::Outcome, progress::LateBar};
use clap::{
    Parser,
    builder::{PossibleValuesParser, TypedValueParser},
};
use figure::{Figure, FigureInput};
use std::{io::Write, path::PathBuf};

/// Regenerate published figures and compare their numbers
///
/// Writes a page, index.md, and for each figure a picture, a table of the article's claims and the points of its
/// curves. The table shows which numbers are predicted, which one was fitted, and why ours differ.
///
/// Every input of a figure is an option; compare with the articles' numbers only at the defaults.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FiguresOptions {
    /// Folder to write to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Only these figures
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = figure_name())]
    only: Vec<&'static KnownFigure>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inputs: FigureInputs,
}

/// The inputs of all figures.
#[derive(Clone, Debug, clap::Args)]
struct FigureInputs {
    #[command(flatten)]
    vertex: vertex::VertexInputs,
    #[command(flatten)]
    trees: trees::TreesInputs,
    #[command(flatten)]
    fairring: fairring::FairringInputs,
    #[command(flatten)]
    notes: notes::NotesInputs,
}

/// The inputs' defaults.
#[derive(clap::Parser)]
struct DefaultInputs {
    #[command(flatten)]
    inputs: FigureInputs,
}

/// A figure that can be asked for.
#[derive(Debug)]
struct KnownFigure {
    name: &'static str,
    /// Its inputs, with their values.
    inputs: fn(&FigureInputs) -> Vec<FigureInput>,
    make: fn(&FigureInputs) -> Result<Figure, Failure>,
}

/// All figures, in the order of the page.
static FIGURES: [KnownFigure; 4] = [
    KnownFigure {
        name: "vertex",
        inputs: |inputs| inputs.vertex.listed(),
        make: |inputs| vertex::figure(&inputs.vertex),
    },
    KnownFigure {
        name: "trees",
        inputs: |inputs| inputs.trees.listed(),
        make: |inputs| trees::figure(&inputs.trees),
    },
    KnownFigure {
        name: "fairring",
        inputs: |inputs| inputs.fairring.listed(),
        make: |inputs| fairring::figure(&inputs.fairring),
    },
    KnownFigure {
        name: "notes",
        inputs: |inputs| inputs.notes.listed(),
        make: |inputs| notes::figure(&inputs.notes),
    },
];

fn figure_name() -> impl TypedValueParser<Value = &'static KnownFigure> {
    PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name))
        .try_map(|name| FIGURES.iter().find(|figure| figure.name == name).ok_or("no figure has this name"))
}

pub(crate) fn run(options: &FiguresOptions, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let chosen = chosen(options);
    refuse_useless(options, &chosen)?;
    // Figures take minutes, after which it would be late to hear that they have no place.
    write::make_folder(&options.folder)?;
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

/// The requested figures, in the order of the page; all of them if none is named.
fn chosen(options: &FiguresOptions) -> Vec<&'static KnownFigure> {
    let is_asked = |known: &&KnownFigure| {
        options.only.is_empty() || options.only.iter().any(|one| one.name == known.name)
    };
    FIGURES.iter().filter(is_asked).collect()
}

/// Refuses an input of a figure that is not asked for.
fn refuse_useless(options: &FiguresOptions, chosen: &[&KnownFigure]) -> Result<(), Failure> {
    let DefaultInputs { inputs: defaults } = DefaultInputs::parse_from(["figures"]);
    let names: Vec<&str> = chosen.iter().map(|known| known.name).collect();
    for known in FIGURES.iter().filter(|known| !names.contains(&known.name)) {
        let given = (known.inputs)(&options.inputs);
        let is_useless = |(input, default): (&FigureInput, &FigureInput)| (input.option, input != default);
        let useless: Vec<_> = given.iter().zip(&(known.inputs)(&defaults)).map(is_useless).collect();
        Failure::if_useless(&useless, names.join(","), "add its figure to --only, or leave it out")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
