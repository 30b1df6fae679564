//! Figures as pages, files of values, JSON, and a table for people.

use super::{
    figure::{ArticleClaim, Figure},
    picture::picture,
};
use crate::{failure::Failure, table};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// The text above all figures.
const INTRODUCTION: &str = "\
# Figures of the articles, regenerated
`herringbone figures` writes this page. Each figure compares sentences of an article with the results of Herringbone's schedules and
simulations. Only numbers in an article's text are compared; nothing is read off its pictures.

| how | meaning |
|---|---|
| fitted | one constant of the figure was chosen to give this baseline; each figure has at most one |
| predicted | simulated with proven schedules and that constant; hollow points are prices instead of simulations |
| formula | the article has a formula; ours is counted in proven schedules, or simulated with only the formula's costs |

Compare our numbers with an article's only at the default inputs. Options change an input, and with it our numbers and curves:

```sh
herringbone figures changed --only notes --notes-ring 6
```
";

/// Makes the folder that figures are written to, if there is none.
///
/// # Errors
/// If there can be none.
pub(super) fn make_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::system(refused(folder)))
}

fn refused(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Writes `index.md`, and for each figure its picture, its claims and its points; returns the paths. The page is written last, so that all that
/// it links to is there.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn write(folder: &Path, figures: &[Figure]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = vec![(folder.join("index.md"), index(figures))];
    for figure in figures {
        files.push((folder.join(format!("{}.svg", figure.name)), picture(figure)));
        files.push((folder.join(format!("{}.csv", figure.name)), claims_csv(figure)));
        files.push((folder.join(format!("{}-points.csv", figure.name)), points_csv(figure)));
    }
    for (path, text) in files.iter().rev() {
        fs::write(path, text).map_err(Failure::system(refused(path)))?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// The page of all figures.
fn index(figures: &[Figure]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for figure in figures {
        let Figure { name, title, source, about, claims, .. } = figure;
        let _written = write!(page, "\n## {title}\nSource: {source}. {about}\n\n![{title}]({name}.svg)\n\n");
        if let Some(fitted) = sentence_of_fitted(figure) {
            let _written = writeln!(page, "{fitted}\n");
        }
        page += "| article | its number | ours | how | reason for a difference, or remark |\n|---|---|---|---|---|\n";
        for ArticleClaim { said, seed, ours, how, why } in claims {
            let why = why.as_deref().unwrap_or_default();
            let cells =
                [said, &seed.words, &ours.words, how.name(), why].map(|cell| cell.replace('|', "\\|"));
            let _written = writeln!(page, "| {} |", cells.join(" | "));
        }
        let _written = writeln!(
            page,
            "\nValues: [{name}.csv]({name}.csv); points of the curves: [{name}-points.csv]({name}-points.csv). Command: `{}`",
            command(figure)
        );
    }
    page
}

/// The command that writes a figure, with all its inputs.
fn command(figure: &Figure) -> String {
    let inputs = figure.inputs.iter().map(|input| format!(" {} {}", input.option, input.value));
    format!("herringbone figures DIR --only {}{}", figure.name, inputs.collect::<String>())
}

fn sentence_of_fitted(figure: &Figure) -> Option<String> {
    let fitted = figure.fitted.as_ref()?;
    Some(format!("Fitted: {} is {}, so that {}.", fitted.constant, fitted.value.words, fitted.to))
}

/// A field of comma-separated values.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn claims_csv(figure: &Figure) -> String {
    let mut text = String::from("said,seed,seed_value,ours,ours_value,how,agrees,why\n");
    let number = |value: Option<f64>| value.map(|value| format!("{value:.6e}")).unwrap_or_default();
    for claim in &figure.claims {
        let _written = writeln!(
            text,
            "{},{},{},{},{},{},{},{}",
            quoted(&claim.said),
            quoted(&claim.seed.words),
            number(claim.seed.value),
            quoted(&claim.ours.words),
            number(claim.ours.value),
            claim.how.name(),
            claim.agrees(),
            quoted(claim.why.as_deref().unwrap_or_default()),
        );
    }
    text
}

fn points_csv(figure: &Figure) -> String {
    let mut text = String::from("chart,curve,x,y,is_price\n");
    for chart in &figure.charts {
        for curve in &chart.curves {
            for point in &curve.points {
                let ((x, y), title) = (point.at, quoted(&chart.title));
                let _written =
                    writeln!(text, "{title},{},{x:.6e},{y:.6e},{}", quoted(&curve.name), point.is_price);
            }
        }
    }
    text
}

/// All figures for programs.
pub(super) fn object(figures: &[Figure]) -> Value {
    let claim = |claim: &ArticleClaim| {
        json!({
            "said": claim.said,
            "seed": claim.seed.words,
            "seed_value": claim.seed.value,
            "ours": claim.ours.words,
            "ours_value": claim.ours.value,
            "how": claim.how.name(),
            "agrees": claim.agrees(),
            "why": claim.why,
        })
    };
    let figures = figures.iter().map(|figure| {
        let inputs = figure.inputs.iter().map(|input| (input.option.to_owned(), json!(input.value)));
        let curves = figure.charts.iter().flat_map(|chart| {
            chart.curves.iter().map(|curve| {
                let points = curve.points.iter().map(|point| json!([point.at.0, point.at.1, point.is_price]));
                json!({ "chart": chart.title, "curve": curve.name, "points": points.collect::<Vec<_>>() })
            })
        });
        json!({
            "name": figure.name,
            "title": figure.title,
            "source": figure.source,
            "inputs": inputs.collect::<serde_json::Map<_, _>>(),
            "fitted": figure.fitted.as_ref().map(|fitted| json!({
                "constant": fitted.constant, "words": fitted.value.words, "value": fitted.value.value, "to": fitted.to,
            })),
            "claims": figure.claims.iter().map(claim).collect::<Vec<_>>(),
            "curves": curves.collect::<Vec<_>>(),
        })
    });
    json!({ "figures": figures.collect::<Vec<_>>() })
}

/// A figure as a table for a terminal.
pub(super) fn text(figure: &Figure) -> String {
    const COLUMNS: [&str; 5] = ["the article", "its number", "ours", "how", "differs"];
    let rows = figure.claims.iter().map(|claim| {
        let differs = if claim.agrees() { "" } else { "yes" };
        vec![claim.said.as_str(), &claim.seed.words, &claim.ours.words, claim.how.name(), differs]
    });
    let mut text = format!("# {}: {}\n", figure.name, figure.title);
    if let Some(fitted) = sentence_of_fitted(figure) {
        let _written = writeln!(text, "# {fitted}");
    }
    text + &table::text(&COLUMNS, &COLUMNS[1..3], rows) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{
        figure::{FigureInput, FittedConstant, How, Quantity},
        tests::figures,
    };

    #[test]
    fn a_page_has_the_constant_the_claims_and_the_command_of_each_figure() {
        let mut figure = figures(&["--only", "notes", "--notes-gpus", "2"]).remove(0);
        figure.inputs = vec![FigureInput::of("--notes-ring", 5)];
        figure.fitted = Some(FittedConstant {
            constant: "the rate".to_owned(),
            value: Quantity::of(9.0, "Gbit/s"),
            to: "a step takes 2 s".to_owned(),
        });
        figure.claims.truncate(1);
        figure.claims[0].why = Some("a | b".to_owned());
        figure.claims[0].how = How::Predicted;
        let page = index(&[figure.clone()]);
        let command = format!("`herringbone figures DIR --only {} --notes-ring 5`\n", figure.name);
        for part in [
            "Fitted: the rate is 9 Gbit/s, so that a step takes 2 s.",
            " | predicted | a \\| b |\n",
            &command,
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
