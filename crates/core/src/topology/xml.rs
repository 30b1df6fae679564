//! The part of XML that topologies use: elements with attributes, comments and declarations. Text between elements is
//! ignored.

use super::TopologyError;
use super::text::{Position, TextCursor, shown};
use alloc::{format, string::String, vec, vec::Vec};

/// How deep elements nest at most.
const DEPTH: usize = 64;

/// An element and where it begins.
#[derive(Clone, Debug)]
pub(super) struct XmlElement {
    pub(super) at: Position,
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<XmlElement>,
}

impl XmlElement {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An attribute as a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, TopologyError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && (0.0..1e9).contains(&number) => Ok(Some(number)),
            _ => Err(self
                .at
                .error(format!("{name}={}", shown(text)), format!("a number in {name} of <{}>", self.name))),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<XmlElement, TopologyError> {
    let mut scanner = TextCursor::new(text);
    let mut open: Vec<XmlElement> = vec![];
    loop {
        scanner.skip_until('<');
        let at = scanner.at;
        if scanner.take().is_none() {
            let expected = open.last().map_or("an element".into(), |last| format!("</{}>", last.name));
            return Err(at.error("the end of the text", expected));
        }
        let closed = match scanner.peek() {
            Some('?') => scanner.skip_past("?>").map(|()| None)?,
            Some('!') if scanner.starts_with("!--") => scanner.skip_past("-->").map(|()| None)?,
            Some('!') => scanner.skip_past(">").map(|()| None)?,
            Some('/') => Some(scanner.end(at, &mut open)?),
            _ => {
                let (element, is_whole) = scanner.start(at)?;
                if open.len() == DEPTH {
                    return Err(at.error(format!("elements within elements, {DEPTH} deep"), "fewer"));
                }
                if is_whole {
                    Some(element)
                } else {
                    open.push(element);
                    None
                }
            }
        };
        match (closed, open.last_mut()) {
            (Some(element), Some(parent)) => parent.children.push(element),
            (Some(root), None) => return Ok(root),
            (None, _) => {}
        }
    }
}

impl TextCursor {
    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(c) = self.peek().filter(|c| is_part(*c)) {
            taken.push(c);
            self.take();
        }
        taken
    }

    fn skip_until(&mut self, end: char) {
        while self.peek().is_some_and(|c| c != end) {
            self.take();
        }
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(at, c)| self.chars.get(self.next + at) == Some(&c))
    }

    fn skip_past(&mut self, text: &str) -> Result<(), TopologyError> {
        while !self.starts_with(text) {
            if self.take().is_none() {
                return Err(self.at.error("the end of the text", format!("{text:?}")));
            }
        }
        for _ in text.chars() {
            self.take();
        }
        Ok(())
    }

    fn name(&mut self) -> Result<String, TopologyError> {
        let name = self.take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'));
        if name.is_empty() { Err(self.refused("a name")) } else { Ok(name) }
    }

    /// An element's start, and whether it is the whole element.
    fn start(&mut self, at: Position) -> Result<(XmlElement, bool), TopologyError> {
        let mut element = XmlElement { at, name: self.name()?, attributes: vec![], children: vec![] };
        loop {
            self.take_while(char::is_whitespace);
            match self.peek() {
                Some('>') => {
                    self.take();
                    return Ok((element, false));
                }
                Some('/') => {
                    self.take();
                    if self.take() != Some('>') {
                        return Err(self.refused("/>"));
                    }
                    return Ok((element, true));
                }
                _ => {
                    let attribute = self.attribute()?;
                    element.attributes.push(attribute);
                }
            }
        }
    }

    fn attribute(&mut self) -> Result<(String, String), TopologyError> {
        let name = self.name()?;
        self.take_while(char::is_whitespace);
        if self.peek() != Some('=') {
            return Err(self.refused("= and a value in quotation marks"));
        }
        self.take();
        self.take_while(char::is_whitespace);
        let Some(quote) = self.peek().filter(|c| matches!(c, '"' | '\'')) else {
            return Err(self.refused("a value in quotation marks"));
        };
        self.take();
        let value = self.take_while(|c| c != quote && c != '<');
        if self.take() != Some(quote) {
            return Err(self.refused("a quotation mark after the value"));
        }
        Ok((name, value))
    }

    /// The element that is open, at its end.
    fn end(&mut self, at: Position, open: &mut Vec<XmlElement>) -> Result<XmlElement, TopologyError> {
        self.take();
        let name = self.name()?;
        self.skip_past(">")?;
        match open.pop() {
            Some(element) if element.name == name => Ok(element),
            Some(element) => Err(at.error(format!("</{name}>"), format!("</{}>", element.name))),
            None => Err(at.error(format!("</{name}>"), "the start of an element")),
        }
    }
}
