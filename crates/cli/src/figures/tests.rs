//! Figures as users ask for them.

use super::*;
use clap::{CommandFactory, Parser};
use std::collections::BTreeSet;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: FiguresOptions,
}

/// The figures that a command line asks for.
pub(super) fn figures(args: &[&str]) -> Vec<Figure> {
    let line = Line::try_parse_from([&["figures", "nowhere"], args].concat()).unwrap();
    chosen(&line.options).iter().map(|known| (known.make)(&line.options.inputs).unwrap()).collect()
}

/// A figure that is computed soon, and for each of its inputs another value.
struct Moved {
    name: &'static str,
    soon: &'static [&'static str],
    others: &'static [(&'static str, &'static str)],
}

const MOVED: [Moved; 2] = [
    Moved {
        name: "vertex",
        soon: &[
            "--vertex-hosts=3",
            "--vertex-gpus=2",
            "--vertex-reducers=1",
            "--vertex-model=alexnet",
            "--vertex-batch=512",
        ],
        others: &[
            ("--vertex-hosts", "2"),
            ("--vertex-gpus", "1"),
            ("--vertex-reducers", "3"),
            ("--vertex-gbps", "50"),
            ("--vertex-reducer-gbps", "16"),
            ("--vertex-model", "resnet50"),
            ("--vertex-batch", "256"),
            ("--vertex-diagram-workers", "5"),
            ("--vertex-diagram-reducers", "4"),
        ],
    },
    Moved {
        name: "notes",
        soon: &["--notes-gpus=3", "--notes-parameters=3"],
        others: &[
            ("--notes-ring", "6"),
            ("--notes-gpus", "4"),
            ("--notes-parameters", "2"),
            ("--notes-gb-per-s", "2"),
            ("--notes-chain", "6"),
            ("--notes-pieces", "50"),
            ("--notes-alexnet-gpus", "4"),
            ("--notes-alexnet-parameters", "60"),
            ("--notes-alexnet-seconds", "0.5"),
            ("--notes-in-flight", "3"),
        ],
    },
];

/// What readers see of a figure, but for its inputs.
fn seen(figure: &Figure) -> String {
    format!("{:?} {:?} {:?}", figure.fitted, figure.claims, figure.charts)
}

/// The only figure of a command line that names one; a later value of an option wins here.
fn only(name: &str, soon: &[&str], other: &[&str]) -> Figure {
    let option = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
    let others: BTreeSet<String> = other.iter().map(|arg| option(arg)).collect();
    let kept = soon.iter().copied().filter(|arg| !others.contains(&option(arg)));
    figures(&["--only", name].into_iter().chain(kept).chain(other.iter().copied()).collect::<Vec<_>>())
        .remove(0)
}

#[test]
fn every_input_moves_its_figure() {
    for Moved { name, soon, others } in &MOVED {
        let figure = only(name, soon, &[]);
        let asked: Vec<&str> = figure.inputs.iter().map(|input| input.option).collect();
        assert_eq!(
            asked,
            others.iter().map(|(option, _)| *option).collect::<Vec<_>>(),
            "{name}: say another value here"
        );
        for (option, value) in *others {
            let moved = only(name, soon, &[&format!("{option}={value}")]);
            assert_ne!(seen(&figure), seen(&moved), "{option}={value} moves nothing");
        }
    }
}

#[test]
fn every_option_is_an_input_of_a_figure() {
    let listed: BTreeSet<String> =
        MOVED.iter().flat_map(|moved| moved.others).map(|(option, _)| (*option).to_owned()).collect();
    let options = Line::command()
        .get_arguments()
        .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
        .filter(|option| !["--only", "--json"].contains(&option.as_str()))
        .collect::<BTreeSet<_>>();
    assert_eq!(options, listed);
    let names = MOVED.map(|moved| moved.name);
    assert_eq!(FIGURES.iter().map(|figure| figure.name).collect::<Vec<_>>(), names);
}

#[test]
fn a_number_that_differs_has_a_reason() {
    for Moved { name, soon, .. } in &MOVED {
        for claim in only(name, soon, &[]).claims {
            assert!(claim.agrees() || claim.why.is_some(), "{name}: {}", claim.said);
        }
    }
}

#[test]
fn only_the_figures_that_are_named_are_made_in_the_order_of_the_page() {
    let names = |args: &[&str]| {
        let line = Line::try_parse_from([&["figures", "nowhere"], args].concat()).unwrap();
        chosen(&line.options).iter().map(|known| known.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--only", "notes,vertex"]), ["vertex", "notes"]);
    assert_eq!(names(&[]), FIGURES.iter().map(|known| known.name).collect::<Vec<_>>());
    assert!(Line::try_parse_from(["figures", "nowhere", "--only", "alexnet"]).is_err());
}

#[test]
fn inputs_that_bring_no_baseline_about_are_refused() {
    let args = ["figures", "nowhere", "--only", "vertex", "--vertex-batch", "50000"];
    let line = Line::try_parse_from(args).unwrap();
    let refused = (FIGURES[0].make)(&line.options.inputs).unwrap_err();
    assert!(refused.to_string().contains("change the figure's inputs"), "{refused}");
}
