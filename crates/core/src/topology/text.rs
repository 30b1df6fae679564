//! Words of a text and their positions.

use super::TopologyError;
use alloc::{format, string::String, vec::Vec};

/// A place in a text: line and column, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    pub(super) fn error(self, found: impl Into<String>, expected: impl Into<String>) -> TopologyError {
        let Self { line, column } = self;
        TopologyError::Text { line, column, found: found.into(), expected: expected.into() }
    }
}

/// A text that is read character by character, and where it is read.
pub(super) struct TextCursor {
    pub(super) chars: Vec<char>,
    pub(super) next: usize,
    pub(super) at: Position,
}

impl TextCursor {
    pub(super) fn new(text: &str) -> Self {
        Self { chars: text.chars().collect(), next: 0, at: Position { line: 1, column: 1 } }
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.chars.get(self.next).copied()
    }

    pub(super) fn take(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.next += 1;
        self.at = match c {
            '\n' => Position { line: self.at.line + 1, column: 1 },
            _ => Position { column: self.at.column + 1, ..self.at },
        };
        Some(c)
    }

    /// The error of something else than what is expected here.
    pub(super) fn refused(&self, expected: &str) -> TopologyError {
        let found = self.peek().map_or("the end of the text".into(), |c| format!("{c:?}"));
        self.at.error(found, expected)
    }
}

/// What stands between spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextWord {
    pub(super) text: String,
    pub(super) at: Position,
}

impl TextWord {
    /// The number that the word is, if it can be a weight or a bandwidth.
    pub(super) fn number(&self) -> Result<f64, TopologyError> {
        match self.text.parse() {
            Ok(number) => amount(number, self.at),
            Err(_) => Err(self.at.error(shown(&self.text), "a number")),
        }
    }
}

/// A number that can be a weight or a bandwidth.
pub(super) fn amount(number: f64, at: Position) -> Result<f64, TopologyError> {
    if number.is_finite() && number >= 0.0 && number <= f64::from(f32::MAX) {
        return Ok(number);
    }
    Err(at.error(
        figure(number),
        "a number that is finite and not negative, at most 3.4e38; 0 is no link, or a rate that is not known",
    ))
}

/// A number as an error shows it: without hundreds of digits.
pub(super) fn figure(number: f64) -> String {
    match number.is_finite() && number.abs() >= 1e15 {
        true => format!("{number:e}"),
        false => format!("{number}"),
    }
}

/// A text as an error quotes it: in short.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(24).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
}

/// The words of each line, without the escape sequences of terminals.
pub(super) fn lines_of_words(text: &str) -> Vec<Vec<TextWord>> {
    text.lines().enumerate().map(|(line, text)| words(text, line + 1, char::is_whitespace)).collect()
}

/// The words of a line, cut at characters of which `is_gap` says so.
pub(super) fn words(text: &str, line: usize, is_gap: impl Fn(char) -> bool) -> Vec<TextWord> {
    let mut words: Vec<TextWord> = Vec::new();
    let mut open = false;
    let mut chars = text.chars().zip(1..).peekable();
    while let Some((c, column)) = chars.next() {
        if c == '\u{1b}' && chars.peek().is_some_and(|(next, _)| *next == '[') {
            // An escape sequence ends with its first letter.
            let _rest = chars.by_ref().skip(1).find(|(c, _)| c.is_ascii_alphabetic());
        } else if is_gap(c) || c.is_control() {
            open = false;
        } else if open && let Some(word) = words.last_mut() {
            word.text.push(c);
        } else {
            words.push(TextWord { text: String::from(c), at: Position { line, column } });
            open = true;
        }
    }
    words
}
