//! `herringbone settings`: every environment variable that Herringbone reads, and its value here.

use crate::{
    failure::Failure,
    names::{Completed, setting_named},
    outcome::Outcome,
    table,
};
use comfy_table::{ColumnConstraint, Width};
use herringbone::log::warn;
use herringbone::settings::{ALL, Environment, Found, Setting, unknown};
use herringbone::{Error, ErrorKind};
use serde_json::{Value, json};
use std::io::Write;

/// The widest column's width, so that a line fits a wide terminal.
const MEANING_WIDTH: ColumnConstraint = ColumnConstraint::UpperBoundary(Width::Fixed(60));

/// Show every setting: value, source, default, meaning
///
/// Settings are environment variables. Below the table follow the place that a launcher gives this process and any
/// problems with settings (in JSON also under "wrong"), which make the exit code 2. A name that is nearly a setting's
/// gets a warning. Secrets are hidden.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Settings to show, in capitals or not, with or without HERRINGBONE_ [default: all]
    #[arg(value_name = "NAME", value_parser = Completed::new(setting_named, ALL.map(|setting| setting.name).to_vec()), hide_possible_values = true)]
    names: Vec<&'static str>,
    /// Print one JSON object per setting
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options, out: &mut dyn Write) -> Result<Outcome, Failure> {
    let environment = Environment::of_process();
    let is_shown = |setting: &&&Setting| options.names.is_empty() || options.names.contains(&setting.name);
    let rows = ALL.iter().filter(is_shown);
    let rows = rows.map(|setting| Ok(Row { setting, found: setting.find(&environment)? }));
    let rows = rows.collect::<Result<Vec<Row>, Failure>>()?;
    for name in unknown(&environment) {
        warn("settings", name);
    }
    let mut problems = environment.problems();
    if !options.names.is_empty() {
        problems.retain(|problem| rows.iter().any(|row| row.has(problem)));
    }
    if options.json {
        for row in &rows {
            writeln!(out, "{}", row.object(&problems))?;
        }
    } else {
        let widths = [(0, ColumnConstraint::ContentWidth), (3, MEANING_WIDTH)];
        let columns = ["name", "value", "from", "meaning"];
        writeln!(out, "{}", table::sentences(&columns, &[], &widths, rows.iter().map(Row::cells)))?;
        // One that cannot be told is among the problems.
        if let Ok(place) = environment.place()
            && options.names.is_empty()
        {
            let place = place.unwrap_or_else(|| {
                "no launcher has started this process, so it is a job of one rank".to_owned()
            });
            writeln!(out, "\n{}", table::visible(&place))?;
        }
    }
    out.flush()?;
    if problems.is_empty() { Ok(Outcome::Passed) } else { Err(Failure::Settings(problems)) }
}

struct Row {
    setting: &'static Setting,
    found: Option<Found>,
}

impl Row {
    /// The value in effect, unless it is secret.
    fn value(&self) -> &str {
        match &self.found {
            Some(_) if self.setting.secret => "(set)",
            Some(found) => &found.text,
            None => self.setting.default,
        }
    }

    fn cells(&self) -> [String; 4] {
        let Setting { name, default, meaning, values, .. } = *self.setting;
        let from = match &self.found {
            Some(found) if found.variable == name => format!("environment (else {default})"),
            Some(found) => format!("{} (else {default})", found.variable),
            None => "default".to_owned(),
        };
        [name.to_owned(), table::visible(self.value()), from, format!("{meaning} ({values})")]
    }

    /// Whether a problem is one of this setting, or of a variable that replaces it.
    fn has(&self, problem: &Error) -> bool {
        let ErrorKind::Config { setting: named, .. } = problem.kind() else { return false };
        let mut own =
            self.setting.fallbacks.iter().flat_map(|names| names.iter()).chain([&self.setting.name]);
        own.any(|name| named.split([':', ',']).any(|part| part.trim() == *name))
    }

    fn object(&self, problems: &[Error]) -> Value {
        let Setting { name, default, meaning, values, readers, .. } = *self.setting;
        json!({
            "name": name,
            "value": self.found.as_ref().map(|_| self.value()),
            "from": self.found.as_ref().map(|found| &found.variable),
            "wrong": problems.iter().find(|problem| self.has(problem)).map(Error::to_string),
            "default": default,
            "values": values,
            "meaning": meaning,
            "readers": readers.iter().map(|reader| reader.name()).collect::<Vec<_>>(),
        })
    }
}
