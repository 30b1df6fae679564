//! `herringbone man`: the manual pages, made of the texts that --help shows.

use crate::{failure::Failure, outcome::Outcome};
use clap_mangen::Man;
use std::io::Write;
use std::path::PathBuf;

/// Print a manual page, or write all of them to a folder
///
/// To read one: herringbone man bench | man -l -. To install all: herringbone man --folder ~/.local/share/man/man1
#[derive(Debug, clap::Args)]
pub(crate) struct ManOptions {
    /// Verb to print [default: the command itself]
    #[arg(value_name = "VERB")]
    verb: Option<String>,
    /// Write herringbone.1 and a page per verb into this folder, which is created if missing
    #[arg(long, value_name = "PATH", conflicts_with = "verb")]
    folder: Option<PathBuf>,
}

/// `command` is the command that the pages are about.
pub(crate) fn run(
    options: &ManOptions,
    mut command: clap::Command,
    out: &mut dyn Write,
) -> Result<Outcome, Failure> {
    command = command.disable_help_subcommand(true);
    command.build();
    if let Some(folder) = &options.folder {
        let refused = || Failure::system(format!("cannot write pages to {}", folder.display()));
        std::fs::create_dir_all(folder).map_err(refused())?;
        for command in std::iter::once(&command).chain(command.get_subcommands()) {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name());
            std::fs::write(folder.join(format!("{name}.1")), page(command)?).map_err(refused())?;
        }
        return Ok(Outcome::Passed);
    }
    let shown = match options.verb.as_deref() {
        None => &command,
        Some(verb) => command.find_subcommand(verb).ok_or_else(|| Failure::Usage {
            problem: format!("unknown verb {verb:?}"),
            hint: "herringbone --help lists them",
        })?,
    };
    out.write_all(&page(shown)?)?;
    Ok(Outcome::Passed)
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let version = concat!("herringbone ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).manual("Herringbone").render(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(verb: Option<&str>) -> Result<String, Failure> {
        let options = ManOptions { verb: verb.map(str::to_owned), folder: None };
        let mut out = Vec::new();
        run(&options, crate::command(), &mut out).map(|_| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_page_has_the_options_of_its_verb() {
        let own = printed(None).unwrap();
        assert!(own.starts_with(".ie") && own.contains("herringbone\\-bench(1)"), "{own}");
        let bench = printed(Some("bench")).unwrap();
        assert!(bench.contains(".TH herringbone-bench 1") && bench.contains("\\-\\-sizes"), "{bench}");
        assert!(printed(Some("bensh")).unwrap_err().to_string().contains("herringbone --help lists them"));
    }

    #[test]
    fn a_folder_gets_a_page_for_each_verb() {
        let folder = std::env::temp_dir().join(format!("herringbone-man-{}", std::process::id()));
        let options = ManOptions { verb: None, folder: Some(folder.clone()) };
        run(&options, crate::command(), &mut Vec::new()).unwrap();
        let pages = std::fs::read_dir(&folder).unwrap().count();
        let verify = std::fs::read_to_string(folder.join("herringbone-verify.1")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(pages, 1 + crate::command().get_subcommands().count());
        assert!(verify.contains("Prove schedules"), "{verify}");
    }
}
