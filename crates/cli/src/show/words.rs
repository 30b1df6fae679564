//! The words of a picture and of a page: names of ranks and steps, and terms in lines.

use herringbone::core::{terms::TermHistory, verify::Order};
use std::fmt::Display;

/// What was asked for.
pub(super) struct Subject<'a> {
    /// The algorithm, or the schedule's file.
    pub(super) name: &'a dyn Display,
    pub(super) collective: &'a dyn Display,
}

impl Subject<'_> {
    /// What the picture is of.
    pub(super) fn title(&self, history: &TermHistory) -> String {
        let (workers, reducers) = (history.workers(), history.ranks() - history.workers());
        let ranks = match reducers {
            0 => count(workers, "rank"),
            _ => format!("{} and {}", count(workers, "worker"), count(reducers, "reducer")),
        };
        format!("{}: {} of {ranks}, step by step", self.name, self.collective)
    }
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// How terms are read.
pub(super) fn reading(history: &TermHistory) -> String {
    let others =
        if history.workers() > 1 { format!(", b0 that of {}", rank(history, 1)) } else { String::new() };
    let order = "Without brackets, additions go from left to right.";
    format!("a0 is chunk 0 of {}{others}. {order}", rank(history, 0))
}

/// Where the order of additions comes from; nothing where there are none.
pub(super) fn order(history: &TermHistory, folds: bool) -> &'static str {
    match history.order() {
        _ if !folds => "Blocks are moved; nothing is added.",
        Order::Fixed => {
            "Brackets follow the canonical tree: other algorithms with this order give the same bits."
        }
        Order::Schedule => {
            "The order of additions is specific to this schedule; all ranks get the same bits."
        }
    }
}

/// A rank's name.
pub(super) fn rank(history: &TermHistory, rank: u32) -> String {
    match rank.checked_sub(history.workers()) {
        Some(reducer) => format!("reducer {reducer}"),
        None if history.ranks() > history.workers() => format!("worker {rank}"),
        None => format!("rank {rank}"),
    }
}

/// A term in lines of at most this many letters: broken around innermost brackets if it has any, and before each + where that is not
/// enough.
pub(super) fn lines(term: &str, most: usize) -> Vec<String> {
    let outer = |before: &str, after: &str| before.ends_with(')') || after.starts_with("+(");
    let pieces = pieces(term, outer).into_iter().flat_map(|piece| match piece.len() > most {
        true => pieces(piece, |_, _| true),
        false => vec![piece],
    });
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if line.len() + piece.len() <= most => line.push_str(piece),
            _ => lines.push(piece.to_owned()),
        }
    }
    lines
}

/// A term cut before each + for which `is_cut` says so, given what comes before and what follows.
fn pieces(term: &str, is_cut: impl Fn(&str, &str) -> bool) -> Vec<&str> {
    let plus = term.match_indices('+').map(|(at, _)| at).filter(|at| *at > 0);
    let cuts = plus.filter(|at| is_cut(&term[..*at], &term[*at..])).chain([term.len()]);
    let mut start = 0;
    cuts.map(|end| &term[std::mem::replace(&mut start, end)..end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_broken_before_a_plus() {
        assert_eq!(lines("a0", 5), ["a0"]);
        assert_eq!(lines("a0+b0", 5), ["a0+b0"]);
        assert_eq!(lines("(a0+b0)+(c0+d0)", 9), ["(a0+b0)", "+(c0+d0)"]);
        assert_eq!(lines("(a0+b0)+(c0+d0)", 17), ["(a0+b0)+(c0+d0)"]);
        assert_eq!(lines("a10+b10+c10", 3), ["a10", "+b10", "+c10"]);
        assert_eq!(lines("a0+b0+c0+d0", 7), ["a0+b0", "+c0+d0"]);
        // Innermost brackets stay together as long as they fit.
        assert_eq!(lines("((a0+b0)+(c0+d0))+e0", 15), ["((a0+b0)", "+(c0+d0))+e0"]);
        assert_eq!(lines("(a0+b0)+(c0+d0+e0)", 9), ["(a0+b0)", "+(c0+d0", "+e0)"]);
    }
}
