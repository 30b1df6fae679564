//! Figures as users ask for them.

use super::*;
use clap::Parser;

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

#[test]
fn a_number_that_differs_has_a_reason() {
    for figure in figures(&[]) {
        for claim in &figure.claims {
            assert!(claim.agrees() || claim.why.is_some(), "{}: {}", figure.name, claim.said);
        }
    }
}
