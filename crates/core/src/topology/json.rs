//! JSON (RFC 8259) with the place of each value, so that an error can name it. Launchers' variables are read by it, too.

use super::TopologyError;
use super::text::{Position, TextCursor, figure, shown};
use crate::trace;
use alloc::{collections::BTreeSet, format, string::String, vec, vec::Vec};

/// How deep values nest at most.
const DEPTH: usize = 32;

/// A value and its position.
#[derive(Clone, Debug)]
pub struct JsonValue {
    pub(super) at: Position,
    pub(super) kind: JsonKind,
}

#[derive(Clone, Debug)]
pub(super) enum JsonKind {
    /// `null`, `true` and `false`, which nothing here needs.
    Word,
    /// Also `NaN` and `Infinity`, which Python writes.
    Number(f64),
    Text(String),
    List(Vec<JsonValue>),
    Object(Vec<(String, JsonValue)>),
}

impl JsonValue {
    /// The member of an object, if it is one.
    pub fn get(&self, key: &str) -> Option<&JsonValue> {
        match &self.kind {
            JsonKind::Object(fields) => fields.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// What the value is, in words for an error.
    pub(super) fn found(&self) -> String {
        match &self.kind {
            JsonKind::Word => "null, true or false".into(),
            JsonKind::Number(number) => figure(*number),
            JsonKind::Text(text) => shown(text),
            JsonKind::List(items) => format!("a list of {}", items.len()),
            JsonKind::Object(_) => "an object".into(),
        }
    }

    /// The items of a list. If it is none, the error names the expected value, as in the next two.
    ///
    /// # Errors
    /// If it is something else.
    pub fn list(&self, expected: &str) -> Result<&[JsonValue], TopologyError> {
        match &self.kind {
            JsonKind::List(items) => Ok(items),
            _ => Err(self.at.error(self.found(), expected)),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// If it is something else.
    pub fn text(&self, expected: &str) -> Result<&str, TopologyError> {
        match &self.kind {
            JsonKind::Text(text) => Ok(text),
            _ => Err(self.at.error(self.found(), expected)),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// If it is something else.
    pub fn number(&self, expected: &str) -> Result<f64, TopologyError> {
        match &self.kind {
            JsonKind::Number(number) => Ok(*number),
            _ => Err(self.at.error(self.found(), expected)),
        }
    }
}

/// A text as JSON writes it.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    trace::text(&mut quoted, text).expect("a String takes all that is written");
    quoted
}

/// Reads one value.
///
/// # Errors
/// If the text is no JSON, with the place.
pub fn parse(text: &str) -> Result<JsonValue, TopologyError> {
    let mut scanner = TextCursor::new(text);
    let value = scanner.value(0)?;
    scanner.skip_spaces();
    match scanner.peek() {
        None => Ok(value),
        Some(c) => Err(scanner.at.error(format!("{c:?} after the value"), "the end of the text")),
    }
}

impl TextCursor {
    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(|c| matches!(c, ' ' | '\t' | '\r' | '\n')) {
            self.take();
        }
    }

    fn value(&mut self, depth: usize) -> Result<JsonValue, TopologyError> {
        self.skip_spaces();
        let at = self.at;
        if depth > DEPTH {
            return Err(at.error(format!("values within values, {depth} deep"), "fewer brackets"));
        }
        let kind = match self.peek() {
            Some('[') => self.list(depth)?,
            Some('{') => self.object(depth)?,
            Some('"') => JsonKind::Text(self.string()?),
            Some(c) if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.') => self.word()?,
            _ => return Err(self.refused("a number, a text, a list or an object")),
        };
        Ok(JsonValue { at, kind })
    }

    /// Items up to `close`, with commas between them.
    fn items(
        &mut self,
        close: char,
        item: &mut impl FnMut(&mut Self) -> Result<(), TopologyError>,
    ) -> Result<(), TopologyError> {
        self.take();
        self.skip_spaces();
        if self.peek() == Some(close) {
            self.take();
            return Ok(());
        }
        loop {
            item(self)?;
            self.skip_spaces();
            match self.peek() {
                Some(',') => {
                    self.take();
                }
                Some(c) if c == close => {
                    self.take();
                    return Ok(());
                }
                _ => return Err(self.refused(&format!("a comma or {close:?}"))),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<JsonKind, TopologyError> {
        let mut items = vec![];
        self.items(']', &mut |scanner| {
            items.push(scanner.value(depth + 1)?);
            Ok(())
        })?;
        Ok(JsonKind::List(items))
    }

    fn object(&mut self, depth: usize) -> Result<JsonKind, TopologyError> {
        let (mut fields, mut names) = (vec![], BTreeSet::new());
        self.items('}', &mut |scanner| {
            scanner.skip_spaces();
            if scanner.peek() != Some('"') {
                return Err(scanner.refused("a name in quotation marks"));
            }
            let at = scanner.at;
            let name = scanner.string()?;
            if !names.insert(name.clone()) {
                return Err(at.error(format!("{} again", shown(&name)), "each name once"));
            }
            scanner.skip_spaces();
            if scanner.peek() != Some(':') {
                return Err(scanner.refused("a colon"));
            }
            scanner.take();
            fields.push((name, scanner.value(depth + 1)?));
            Ok(())
        })?;
        Ok(JsonKind::Object(fields))
    }

    fn string(&mut self) -> Result<String, TopologyError> {
        self.take();
        let mut text = String::new();
        loop {
            match self.take() {
                None => return Err(self.refused("a quotation mark")),
                Some('"') => return Ok(text),
                Some('\\') => match self.take() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('r') => text.push('\r'),
                    Some('b') => text.push('\u{8}'),
                    Some('f') => text.push('\u{c}'),
                    Some('u') => text.push(self.escaped()?),
                    Some(c @ ('"' | '\\' | '/')) => text.push(c),
                    _ => return Err(self.refused("a letter that can follow a backslash")),
                },
                Some(c) => text.push(c),
            }
        }
    }

    /// Four digits; halves of pairs stand for nothing that names here need.
    fn escaped(&mut self) -> Result<char, TopologyError> {
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return Err(self.refused("a hexadecimal digit"));
            };
            self.take();
            code = code * 16 + digit;
        }
        Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn word(&mut self) -> Result<JsonKind, TopologyError> {
        let at = self.at;
        let mut word = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.'))
        {
            word.push(c);
            self.take();
        }
        match word.as_str() {
            "null" | "true" | "false" => Ok(JsonKind::Word),
            _ => match word.parse() {
                Ok(number) => Ok(JsonKind::Number(number)),
                Err(_) => Err(at.error(shown(&word), "a number")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_the_standard() {
        let read = parse(r#"{"\u0041\n\t\r\b\f\"\\\/": [1.5e3, -2, true, null, {}, [[]]]}"#).unwrap();
        let items = read.get("A\n\t\r\u{8}\u{c}\"\\/").unwrap().list("items").unwrap();
        let [first, second] = [0, 1].map(|at: usize| items[at].number("a number"));
        assert_eq!((first, second), (Ok(1500.0), Ok(-2.0)));
        let name = "a\"\\\n\u{1}";
        assert_eq!(parse(&quoted(name)).unwrap().text("a name"), Ok(name));
        let deep = "[".repeat(40) + &"]".repeat(40);
        for wrong in ["", "{", "{\"a\"}", "[1,]", "[1 2]", "\"a", "a", "{} {}", "\"\\x\"", "\"\\u12\"", &deep]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
