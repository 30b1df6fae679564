//! Splits a list of events into events.

use std::io::BufRead;

/// The longest event that is read.
const MOST: usize = 1 << 20;

/// Gives the events of a file one after the other, as texts. The list might have no end, because its process died.
#[derive(Debug)]
pub(crate) struct EventReader<R> {
    input: R,
    event: Vec<u8>,
    place: Place,
    is_cut: bool,
}

/// Where the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before the list.
    Before,
    /// Between events; `comma` if one has just been read.
    Between { comma: bool },
    /// In an event, below this many open braces and brackets.
    Event { depth: u32 },
    /// In a text of an event; `escaped` after a backslash.
    Text { depth: u32, escaped: bool },
    /// Behind the list.
    Behind,
}

impl<R: BufRead> EventReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, event: Vec::new(), place: Place::Before, is_cut: false }
    }

    /// Whether the end of the list is missing, as far as it has been read.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The text of the next event.
    ///
    /// # Errors
    /// If this is not a list of events, or cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, String> {
        self.event.clear();
        loop {
            let bytes = self.input.fill_buf().map_err(|error| format!("cannot be read: {error}"))?;
            if bytes.is_empty() {
                return match self.place {
                    Place::Before => Err("is not a list of events: it is empty".into()),
                    Place::Behind => Ok(None),
                    _ => {
                        self.is_cut = true;
                        Ok(None)
                    }
                };
            }
            let mut taken = 0;
            let mut is_whole = false;
            // An event's bytes are taken at once.
            let mut from =
                if matches!(self.place, Place::Event { .. } | Place::Text { .. }) { Some(0) } else { None };
            for byte in bytes {
                taken += 1;
                let was = self.place;
                self.place = was.after(*byte)?;
                match (was, self.place) {
                    (Place::Between { .. }, Place::Event { .. }) => from = Some(taken - 1),
                    (Place::Event { .. }, Place::Between { .. }) => {
                        is_whole = true;
                        break;
                    }
                    _ => {}
                }
            }
            if let Some(from) = from {
                self.event.extend_from_slice(&bytes[from..taken]);
            }
            self.input.consume(taken);
            if self.event.len() > MOST {
                return Err(format!("an event is longer than {MOST} B"));
            }
            if is_whole {
                return Ok(Some(&self.event));
            }
        }
    }
}

impl Place {
    fn after(self, byte: u8) -> Result<Self, String> {
        let unexpected = |wanted: &str| {
            let found = char::from(byte);
            Err(format!("is not a list of events: {found:?} where {wanted} is expected"))
        };
        Ok(match (self, byte) {
            (Self::Before | Self::Between { .. } | Self::Behind, b' ' | b'\n' | b'\r' | b'\t') => self,
            (Self::Before, b'[') => Self::Between { comma: false },
            (Self::Before, _) => return unexpected("`[`"),
            (Self::Between { comma: true }, b',') => Self::Between { comma: false },
            (Self::Between { comma: false }, b'{') => Self::Event { depth: 1 },
            (Self::Between { .. }, b']') => Self::Behind,
            (Self::Between { .. }, _) => return unexpected("an event"),
            (Self::Behind, _) => return unexpected("the end"),
            (Self::Event { depth }, b'"') => Self::Text { depth, escaped: false },
            (Self::Event { depth }, b'{' | b'[') => Self::Event { depth: depth + 1 },
            (Self::Event { depth: 1 }, b'}') => Self::Between { comma: true },
            (Self::Event { depth }, b'}' | b']') if depth > 1 => Self::Event { depth: depth - 1 },
            (Self::Event { depth }, _) => Self::Event { depth },
            (Self::Text { depth, escaped: false }, b'"') => Self::Event { depth },
            (Self::Text { depth, escaped }, byte) => Self::Text { depth, escaped: byte == b'\\' && !escaped },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn read(text: &str, buffer: usize) -> Result<(Vec<String>, bool), String> {
        let mut reader = EventReader::new(BufReader::with_capacity(buffer, text.as_bytes()));
        let mut found = Vec::new();
        while let Some(event) = reader.next()? {
            found.push(String::from_utf8_lossy(event).into_owned());
        }
        Ok((found, reader.is_cut()))
    }

    #[test]
    fn events_are_split_wherever_the_buffer_ends() {
        let text = "[\n{\"a\":\"}\\\"]{\"},\n{\"b\":[{},{\"c\":1}]} , {}\n]\n";
        for buffer in 1..text.len() {
            let (found, is_cut) = read(text, buffer).unwrap();
            assert_eq!(found, ["{\"a\":\"}\\\"]{\"}", "{\"b\":[{},{\"c\":1}]}", "{}"], "{buffer}");
            assert!(!is_cut);
        }
    }

    #[test]
    fn a_list_without_an_end_has_its_whole_events() {
        for (text, events) in
            [("[", 0), ("[\n{\"a\":1}", 1), ("[{\"a\":1},", 1), ("[{\"a\":1},\n{\"b\":\"x", 1)]
        {
            let (found, is_cut) = read(text, 64).unwrap();
            assert_eq!((found.len(), is_cut), (events, true), "{text}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (text, said) in [
            ("", "it is empty"),
            ("{}", "'{' where `[` is expected"),
            ("[1]", "'1' where an event is expected"),
            ("[{}{}]", "'{' where an event is expected"),
            ("[{}] x", "'x' where the end is expected"),
        ] {
            let failure = read(text, 64).unwrap_err();
            assert!(failure.contains(said), "{text}: {failure}");
        }
        assert!(
            read(&format!("[{{\"a\":\"{}\"}}]", "x".repeat(MOST)), 1 << 16).unwrap_err().contains("longer")
        );
    }
}
