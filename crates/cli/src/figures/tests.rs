//! Figures as users ask for them.

use super::*;
use clap::CommandFactory;
use std::{collections::BTreeSet, env, fs};

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

const MOVED: [Moved; 4] = [
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
        name: "trees",
        soon: &["--trees-message-us=3"],
        others: &[
            ("--trees-nvlink", "50"),
            ("--trees-pcie", "20"),
            ("--trees-ring-links", "6"),
            ("--trees-message-us", "9"),
            ("--trees-batch", "8"),
            ("--trees-speed", "1"),
            ("--trees-bound", "0.5"),
        ],
    },
    Moved {
        name: "fairring",
        soon: &["--fairring-message-us=2", "--fairring-most-gpus=64"],
        others: &[
            ("--fairring-gpus", "4"),
            ("--fairring-most-gpus", "128"),
            ("--fairring-gbps", "100"),
            ("--fairring-nvlink", "50"),
            ("--fairring-message-us", "20"),
            ("--fairring-rate", "5e13"),
            ("--fairring-batch", "3"),
            ("--fairring-slice-mib", "12"),
            ("--fairring-staging-mib", "25"),
            ("--fairring-buckets", "16"),
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

/// Shows that each input moves the figure of this name.
fn inputs_move(name: &str) {
    let Moved { name, soon, others } = MOVED.iter().find(|moved| moved.name == name).unwrap();
    let figure = only(name, soon, &[]);
    let asked: Vec<&str> = figure.inputs.iter().map(|input| input.option).collect();
    let given: Vec<&str> = others.iter().map(|(option, _)| *option).collect();
    assert_eq!(asked, given, "{name}: say another value here");
    for (option, value) in *others {
        let moved = only(name, soon, &[&format!("{option}={value}")]);
        assert_ne!(seen(&figure), seen(&moved), "{option}={value} moves nothing");
    }
}

/// Its simulations are many: a test of its own runs beside that of the others.
const LONG: &str = "fairring";

#[test]
fn every_input_moves_its_figure() {
    MOVED.iter().filter(|moved| moved.name != LONG).for_each(|moved| inputs_move(moved.name));
}

#[test]
fn every_input_moves_the_longest_figure() {
    inputs_move(LONG);
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
    let args = ["figures", "nowhere", "--only", "vertex", "--vertex-reducer-gbps", "0.1"];
    let line = Line::try_parse_from(args).unwrap();
    let refused = (FIGURES[0].make)(&line.options.inputs).unwrap_err();
    assert!(refused.to_string().contains("need 8000 reducers, but at most 256 are tried"), "{refused}");
}

/// Runs a command line that writes into a folder of this test's own, and returns its output and the files' names.
fn run_into(folder: &str, args: &[&str]) -> Result<(String, Vec<String>), String> {
    let folder = env::temp_dir().join(format!("herringbone-figures-{folder}-{}", std::process::id()));
    let line = Line::try_parse_from([&["figures", &folder.to_string_lossy()], args].concat()).unwrap();
    let mut out = Vec::new();
    run(&line.options, &mut out).map_err(|failure| failure.to_string())?;
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    fs::remove_dir_all(&folder).unwrap();
    Ok((String::from_utf8(out).unwrap(), names))
}

#[test]
fn a_folder_gets_a_page_and_three_files_of_each_figure() {
    let (text, names) = run_into("files", &["--only", "notes", "--notes-gpus", "2"]).unwrap();
    assert_eq!(names, ["index.md", "notes-points.csv", "notes.csv", "notes.svg"]);
    assert!(text.starts_with("# notes: ") && text.contains("8 K") && text.contains("1.6 K"), "{text}");
    let (json, _) = run_into("json", &["--only", "notes", "--notes-gpus", "2", "--json"]).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&json).unwrap();
    let figure = &figures["figures"][0];
    assert_eq!(figure["inputs"]["--notes-gpus"], "2");
    let claim = figure["claims"].as_array().unwrap().iter().find(|claim| claim["seed"] == "8 K").unwrap();
    assert_eq!(
        (claim["agrees"].as_bool(), claim["ours_value"].as_f64()),
        (Some(false), Some(1.6)),
        "{claim}"
    );
}

/// The input cannot be used, either, which is found later.
#[test]
fn a_folder_that_cannot_be_is_refused_before_a_figure_is_made() {
    let file = env::temp_dir().join(format!("herringbone-figures-file-{}", std::process::id()));
    fs::write(&file, "a file").unwrap();
    let args = ["figures", &file.to_string_lossy(), "--only", "notes", "--notes-gb-per-s", "1e-300"];
    let line = Line::try_parse_from(args).unwrap();
    let refused = run(&line.options, &mut Vec::new()).unwrap_err().to_string();
    fs::remove_file(&file).unwrap();
    assert!(refused.starts_with(&format!("cannot write {}", file.display())), "{refused}");
}

#[test]
fn a_page_is_written_after_all_that_it_links_to() {
    let figures = figures(&["--only", "notes", "--notes-gpus", "2"]);
    let folder = env::temp_dir().join(format!("herringbone-figures-last-{}", std::process::id()));
    fs::create_dir_all(folder.join("notes.csv")).unwrap();
    let refused = write::write(&folder, &figures).unwrap_err().to_string();
    let has_page = folder.join("index.md").exists();
    fs::remove_dir_all(&folder).unwrap();
    assert!(refused.contains("notes.csv") && !has_page, "{refused}");
}

#[test]
fn an_input_of_a_figure_that_is_not_asked_for_is_refused() {
    let refused = run_into("useless", &["--only", "notes", "--vertex-hosts", "4"]).unwrap_err();
    assert!(refused.starts_with("--vertex-hosts has no effect on notes"), "{refused}");
}

#[test]
fn the_slips_of_the_articles_are_found() {
    let differing = |name: &str, soon: &[&str]| {
        let claims = only(name, soon, &[]).claims.into_iter().filter(|claim| !claim.agrees());
        claims.map(|claim| (claim.seed.words, claim.ours.words)).collect::<Vec<_>>()
    };
    let notes = differing("notes", &["--notes-gpus=10"]);
    let expected = [("8 K", "1.6 K"), ("840 M/s", "861 M/s"), ("26 Gbit/s", "27.55 Gbit/s")];
    assert_eq!(notes, expected.map(|(seed, ours)| (seed.to_owned(), ours.to_owned())));
    let vertex = differing("vertex", MOVED[0].soon);
    let slips = [
        ("1 K", "0.8 K"),
        ("c1+c0+c3+c4", "c1+c0+c3+c2"),
        // Of 6 workers: 6 / (2 * 5).
        ("0.5 of the ring's", "0.6 of the ring's"),
        ("0.5 of the tree's", "0.6 of the tree's"),
    ];
    for (seed, ours) in slips {
        assert!(vertex.contains(&(seed.to_owned(), ours.to_owned())), "{vertex:?}");
    }
}

#[test]
fn simulations_need_as_many_reducers_as_the_articles_rule_says() {
    let base = ["--vertex-hosts=4", "--vertex-model=alexnet", "--vertex-batch=512"];
    for (gpus, gbps, reducer_gbps, enough) in [(1, 64, 32, 8.0), (2, 50, 16, 13.0), (1, 10, 20, 2.0)] {
        let rates = [
            format!("--vertex-gpus={gpus}"),
            format!("--vertex-gbps={gbps}"),
            format!("--vertex-reducer-gbps={reducer_gbps}"),
        ];
        let figure = only("vertex", &base, &rates.each_ref().map(String::as_str));
        let found = figure.claims.iter().find(|claim| claim.said.contains("at least 25")).unwrap();
        assert_eq!(found.ours.value, Some(enough), "{rates:?}");
    }
}

#[test]
fn a_pictures_points_are_those_of_its_curves() {
    let figure = only("notes", &["--notes-gpus=2"], &[]);
    let picture = picture::picture(&figure);
    let points: usize =
        figure.charts.iter().flat_map(|chart| &chart.curves).map(|curve| curve.points.len()).sum();
    let marks: usize = figure.charts.iter().map(|chart| chart.marks.len()).sum();
    assert_eq!(picture.matches("<circle").count(), points + marks);
    for chart in &figure.charts {
        assert!(picture.contains(&chart.title), "{}", chart.title);
    }
}
