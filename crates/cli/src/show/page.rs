//! A schedule as an animated page: the data of the steps, and a script that shows them.

use super::{
    arrows::Arrows,
    words::{self, Subject},
};
use crate::html;
use herringbone::{
    core::terms::{Composition, HistoryLimits, TermHistory},
    svg::escaped,
};
use serde_json::{Value, json};

const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// What a page has room for.
pub(super) const LIMITS: HistoryLimits = HistoryLimits { ranks: 64, blocks: 1 << 17 };
/// In place of a chunk's number in the text of a term.
const ANY: char = '#';

/// The whole file.
pub(super) fn page(history: &TermHistory, subject: &Subject<'_>, folds: bool) -> String {
    let title = subject.title(history);
    let main = format!(
        "<h1>{}</h1>\n<p class=\"quiet\">{} {}</p>\n{}<script type=\"application/json\" id=\"data\">{}</script>\n",
        escaped(&title),
        words::reading(history),
        words::order(history, folds),
        include_str!("assets/page.html"),
        within_html(&data(history, folds))
    );
    html::page(&html::Parts { title: &title, style: STYLE, main: &main, script: SCRIPT })
}

/// JSON that ends no element of HTML early, whatever names are in it.
fn within_html(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

/// What the script shows: the names of ranks, the terms, and the steps with their messages and what ranks hold after them.
fn data(history: &TermHistory, folds: bool) -> Value {
    let terms = (0..history.terms()).map(|term| {
        let (kind, of) = match history.composition(term) {
            Composition::Input(_) => ("input", vec![]),
            Composition::Sum(of) => ("sum", of.to_vec()),
            Composition::Code(of) => ("code", vec![of]),
            Composition::Result(of) => ("result", vec![of]),
        };
        let look = match kind {
            _ if history.is_result(term) => "result",
            _ if history.inputs(term) > 1 => "partial",
            _ => "input",
        };
        json!({ "kind": kind, "of": of, "look": look, "text": history.text(term, ANY) })
    });
    let steps = (0..=history.rounds().len()).map(|step| {
        let messages = step.checked_sub(1).map_or(&[][..], |round| &history.rounds()[round].messages);
        let messages = messages.iter().map(|sent| json!([sent.from, sent.to, sent.chunk, sent.term]));
        let places =
            (0..history.ranks()).flat_map(|rank| (0..history.chunks()).map(move |chunk| (rank, chunk)));
        let held = places.map(|(rank, chunk)| history.held(step, rank, chunk));
        json!({
            "messages": messages.collect::<Vec<_>>(),
            "held": held.collect::<Vec<_>>(),
            "arrows": arrows(history, step),
        })
    });
    json!({
        "ranks": (0..history.ranks()).map(|rank| words::rank(history, rank)).collect::<Vec<_>>(),
        "chunks": history.chunks(),
        "folds": folds,
        "terms": terms.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

/// The arrows of a step, by chunk: for neighbours with the side of the middle that they are on. Other arrows have the ports of the hub and of
/// the ends, each a rank and a part of its block's width.
fn arrows(history: &TermHistory, step: usize) -> Value {
    let rows = (0..history.chunks()).map(|chunk| (chunk, Arrows::of_step(history, step, chunk)));
    let rows = rows.filter(|(_, arrows)| *arrows != Arrows::default());
    let described = rows.map(|(chunk, arrows)| {
        let short = arrows.short.iter().map(|hop| json!([hop.from, hop.to, arrows.side(*hop)]));
        let buses = arrows.buses.iter().enumerate().map(|(at, bus)| {
            let ports = bus.columns().map(|column| json!([column, arrows.port(at, column).part()]));
            json!({ "isSent": bus.is_sent, "level": bus.level, "ports": ports.collect::<Vec<_>>() })
        });
        let row = json!({
            "short": short.collect::<Vec<_>>(),
            "buses": buses.collect::<Vec<_>>(),
            "levels": arrows.levels(),
        });
        (chunk.to_string(), row)
    });
    Value::Object(described.collect())
}
