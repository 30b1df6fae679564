//! The groups of verbs, and the examples and page of each, which `--help` shows in addition to the options.

use clap::Command;

/// Where the pages are.
const PAGES: &str = "https://github.com/herringbone-rs/herringbone/blob/main/docs";

/// Verbs that serve one purpose, as `herringbone --help` lists them.
struct Group {
    title: &'static str,
    verbs: &'static [Verb],
}

/// A verb, command lines that show its use, and the page that explains it.
struct Verb {
    name: &'static str,
    examples: &'static [&'static str],
    page: &'static str,
}

const GROUPS: [Group; 4] = [
    Group { title: "Run", verbs: &RUN },
    Group { title: "Measure", verbs: &MEASURE },
    Group { title: "Understand", verbs: &UNDERSTAND },
    Group { title: "Set up", verbs: &SET_UP },
];

const RUN: [Verb; 5] = [
    Verb {
        name: "launch",
        examples: &[
            "herringbone launch -n 4 -- python train.py",
            "herringbone launch -n 4 --reducers 2 -- python train.py",
        ],
        page: "start.md",
    },
    Verb {
        name: "serve",
        examples: &[
            "herringbone serve",
            "herringbone serve --listen 0.0.0.0:7070 --token-file /etc/herringbone/token",
            "herringbone serve --listen 0.0.0.0:7070 --token-file /etc/herringbone/token --tables",
        ],
        page: "tutorials/reducers.md",
    },
    Verb {
        name: "status",
        examples: &["herringbone status", "herringbone status 10.0.0.5:29400 --watch"],
        page: "operating.md",
    },
    Verb {
        name: "doctor",
        examples: &["herringbone doctor", "herringbone doctor --rank0 10.0.0.5"],
        page: "operating.md",
    },
    Verb {
        name: "horovodrun",
        examples: &["herringbone horovodrun -np 4 python train.py"],
        page: "from-horovod.md",
    },
];

const MEASURE: [Verb; 4] = [
    Verb {
        name: "bench",
        examples: &[
            "herringbone bench --processes 4 --sizes 4,64K,4M",
            "herringbone bench --calibrate --processes 4",
        ],
        page: "benchmarks.md",
    },
    Verb {
        name: "topo",
        examples: &["herringbone topo", "herringbone topo examples/dgx1.txt --svg dgx1.svg"],
        page: "topology.md",
    },
    Verb {
        name: "compare",
        examples: &["herringbone compare --workers 4 --rate 100Mbit --html compared.html"],
        page: "compare.md",
    },
    Verb {
        name: "trace",
        examples: &[
            "herringbone trace merge timelines --output job.json",
            "herringbone trace report job.json --output job.html",
        ],
        page: "timeline.md",
    },
];

const UNDERSTAND: [Verb; 10] = [
    Verb {
        name: "explain",
        examples: &["herringbone explain --ranks 8 --per-host 2 --sizes 4K,25M --reducers 3"],
        page: "planning.md",
    },
    Verb {
        name: "show",
        examples: &[
            "herringbone show --algorithm ring --ranks 4",
            "herringbone show --algorithm ring --ranks 4 --html ring.html",
        ],
        page: "how-it-works.md",
    },
    Verb {
        name: "verify",
        examples: &["herringbone verify --ranks 1..16 --algorithm radix"],
        page: "how-it-works.md",
    },
    Verb {
        name: "simulate",
        examples: &["herringbone simulate --algorithm radix --ranks 4 --bytes 25M --gbps 10"],
        page: "planning.md",
    },
    Verb {
        name: "simulate-training",
        examples: &["herringbone simulate-training --model vgg16 --workers 1..64 --gbps 10"],
        page: "training-simulation.md",
    },
    Verb {
        name: "roofline",
        examples: &["herringbone roofline --algorithm radix --ranks 8 --per-host 2 --gbps 100"],
        page: "planning.md",
    },
    Verb {
        name: "advise",
        examples: &[
            "herringbone advise --workers 8 --worker-gbps 10 --reducer-gbps 10 --bytes 234M --step-ms 250",
        ],
        page: "planning.md",
    },
    Verb {
        name: "search",
        examples: &["herringbone search --topology examples/slow_pairs.json --output found.txt"],
        page: "planning.md",
    },
    Verb {
        name: "trees",
        examples: &["herringbone trees --topology examples/dgx1.txt"],
        page: "topology.md",
    },
    Verb { name: "figures", examples: &["herringbone figures figures"], page: "figures/index.md" },
];

const SET_UP: [Verb; 3] = [
    Verb {
        name: "settings",
        examples: &["herringbone settings", "herringbone settings HERRINGBONE_TOKEN"],
        page: "reference/settings.md",
    },
    Verb { name: "completions", examples: &["herringbone completions bash"], page: "reference/commands.md" },
    Verb {
        name: "man",
        examples: &["herringbone man bench", "herringbone man --folder ~/.local/share/man/man1"],
        page: "reference/commands.md",
    },
];

/// The same command, whose help lists its verbs in groups, and each verb's help examples and a page.
pub(crate) fn with_groups(mut command: Command) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        overview(&command)
    );
    for verb in GROUPS.iter().flat_map(|group| group.verbs) {
        command = command.mut_subcommand(verb.name, |subcommand| subcommand.after_help(notes(verb)));
    }
    command.help_template(template)
}

/// The groups, a line for each verb.
fn overview(command: &Command) -> String {
    let width = command.get_subcommands().map(|verb| verb.get_name().len()).max().unwrap_or(0);
    let about = |name: &str| {
        let verb = command.find_subcommand(name);
        verb.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default()
    };
    let line = |verb: &Verb| format!("  {:width$}  {}\n", verb.name, about(verb.name));
    GROUPS
        .iter()
        .map(|group| format!("{}:\n{}\n", group.title, group.verbs.iter().map(line).collect::<String>()))
        .collect()
}

fn notes(verb: &Verb) -> String {
    let examples: String = verb.examples.iter().map(|example| format!("  {example}\n")).collect();
    format!("Examples:\n{examples}\nGuide: {PAGES}/{}", verb.page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, path::Path};

    fn verbs() -> impl Iterator<Item = &'static Verb> {
        GROUPS.iter().flat_map(|group| group.verbs)
    }

    #[test]
    fn each_verb_is_in_one_group_with_a_line_that_fits() {
        let command = crate::command();
        let listed: Vec<&str> = verbs().map(|verb| verb.name).collect();
        let all: BTreeSet<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(listed.len(), all.len());
        let help = crate::command().render_help().to_string();
        for group in &GROUPS {
            assert!(help.contains(&format!("\n{}:\n", group.title)), "{help}");
        }
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert_eq!(long, Vec::<&str>::new());
    }

    #[test]
    fn examples_can_be_parsed_and_pages_exist() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        for verb in verbs() {
            assert!(docs.join(verb.page).exists(), "{}: no page {}", verb.name, verb.page);
            assert!(!verb.examples.is_empty(), "{} has no example", verb.name);
            for example in verb.examples {
                let words: Vec<&str> = example.split_whitespace().collect();
                assert_eq!(words[..2], ["herringbone", verb.name]);
                crate::command()
                    .try_get_matches_from(&words)
                    .unwrap_or_else(|refusal| panic!("{example}: {refusal}"));
            }
        }
    }

    #[test]
    fn the_help_of_a_verb_ends_with_examples_and_its_page() {
        let mut command = crate::command();
        let help = command.find_subcommand_mut("bench").unwrap().render_long_help().to_string();
        assert!(help.contains("Examples:\n  herringbone bench --processes 4"), "{help}");
        assert!(help.trim_end().ends_with("/docs/benchmarks.md"), "{help}");
    }
}
