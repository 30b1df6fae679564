//! Values that are written as JSON or as a pickle.

use crate::core::trace;
use std::fmt::Write;

/// A value of a record's file.
#[derive(Clone, Debug)]
pub(super) enum FlightValue {
    Nothing,
    Truth(bool),
    Whole(i64),
    Large(u64),
    Text(String),
    List(Vec<FlightValue>),
    /// A pair; JSON has a list of two for it.
    Pair(Box<[FlightValue; 2]>),
    /// Names and values, in this order.
    Map(Vec<(String, FlightValue)>),
}

/// A map of these fields.
pub(super) fn map<const N: usize>(fields: [(&str, FlightValue); N]) -> FlightValue {
    FlightValue::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

impl From<u64> for FlightValue {
    fn from(value: u64) -> Self {
        FlightValue::Large(value)
    }
}

impl From<u32> for FlightValue {
    fn from(value: u32) -> Self {
        FlightValue::Large(value.into())
    }
}

impl From<&str> for FlightValue {
    fn from(value: &str) -> Self {
        FlightValue::Text(value.to_owned())
    }
}

impl<T: Into<FlightValue>> From<Option<T>> for FlightValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(FlightValue::Nothing, Into::into)
    }
}

impl<T: Into<FlightValue>> FromIterator<T> for FlightValue {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        FlightValue::List(items.into_iter().map(Into::into).collect())
    }
}

impl FlightValue {
    /// As JSON (RFC 8259). Items of lists that are maps begin on lines of their own, so that people find an operation in its line.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        // A text takes whatever is written.
        let _written = self.write_json(&mut out);
        out.push('\n');
        out
    }

    fn write_json(&self, out: &mut String) -> std::fmt::Result {
        match self {
            FlightValue::Nothing => out.write_str("null"),
            FlightValue::Truth(value) => write!(out, "{value}"),
            FlightValue::Whole(value) => write!(out, "{value}"),
            FlightValue::Large(value) => write!(out, "{value}"),
            FlightValue::Text(value) => trace::text(out, value),
            FlightValue::List(items) => write_list(out, items),
            FlightValue::Pair(items) => write_list(out, &items[..]),
            FlightValue::Map(fields) => {
                for (at, (name, value)) in fields.iter().enumerate() {
                    out.write_str(if at == 0 { "{" } else { "," })?;
                    trace::text(out, name)?;
                    out.write_char(':')?;
                    value.write_json(out)?;
                }
                out.write_str(if fields.is_empty() { "{}" } else { "}" })
            }
        }
    }

    /// As a pickle of protocol 2, which every Python 3 reads: `pickletools.py` of Python's library says what each byte does.
    pub(super) fn pickle(&self) -> Vec<u8> {
        let mut out = vec![0x80, 2];
        self.write_pickle(&mut out);
        out.push(b'.');
        out
    }

    fn write_pickle(&self, out: &mut Vec<u8>) {
        match self {
            FlightValue::Nothing => out.push(b'N'),
            FlightValue::Truth(value) => out.push(if *value { 0x88 } else { 0x89 }),
            FlightValue::Whole(value) => pickle_number(out, &value.to_le_bytes()),
            // A ninth byte keeps the highest bit from being a sign.
            FlightValue::Large(value) => pickle_number(out, &[&value.to_le_bytes()[..], &[0]].concat()),
            FlightValue::Text(value) => pickle_text(out, value),
            FlightValue::List(items) => {
                out.extend(b"](");
                items.iter().for_each(|item| item.write_pickle(out));
                out.push(b'e');
            }
            FlightValue::Pair(items) => {
                items.iter().for_each(|item| item.write_pickle(out));
                out.push(0x86);
            }
            FlightValue::Map(fields) => {
                out.extend(b"}(");
                for (name, value) in fields {
                    pickle_text(out, name);
                    value.write_pickle(out);
                }
                out.push(b'u');
            }
        }
    }
}

fn write_list(out: &mut String, items: &[FlightValue]) -> std::fmt::Result {
    let between = if matches!(items.first(), Some(FlightValue::Map(_))) { "\n" } else { "" };
    for (at, item) in items.iter().enumerate() {
        out.write_str(if at == 0 { "[" } else { "," })?;
        out.write_str(between)?;
        item.write_json(out)?;
    }
    out.write_str(if items.is_empty() { "[]" } else { "]" })
}

/// An integer of any length, in two's complement.
fn pickle_number(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend([0x8a, bytes.len() as u8]);
    out.extend(bytes);
}

fn pickle_text(out: &mut Vec<u8>, value: &str) {
    out.push(b'X');
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value() -> FlightValue {
        map([
            ("none", FlightValue::Nothing),
            ("yes", FlightValue::Truth(true)),
            ("less", FlightValue::Whole(-2)),
            ("most", FlightValue::Large(u64::MAX)),
            ("text", FlightValue::from("a\"ä\n")),
            ("pair", FlightValue::Pair(Box::new([FlightValue::from(1_u32), FlightValue::from("x")]))),
            ("maps", FlightValue::List(vec![map([]), map([("a", FlightValue::List(Vec::new()))])])),
        ])
    }

    #[test]
    fn json_has_each_map_of_a_list_in_a_line() {
        let expected = concat!(
            r#"{"none":null,"yes":true,"less":-2,"most":18446744073709551615,"text":"a\"ä\u000a","pair":[1,"x"],"maps":["#,
            "\n{},\n{\"a\":[]}]}\n"
        );
        assert_eq!(value().json(), expected);
    }

    #[test]
    fn a_pickle_says_what_it_builds() {
        let small = map([("n", FlightValue::List(vec![FlightValue::Large(1), FlightValue::Truth(false)]))]);
        let expected = b"\x80\x02}(X\x01\0\0\0n](\x8a\x09\x01\0\0\0\0\0\0\0\0\x89eu.";
        assert_eq!(small.pickle(), expected);
        assert!(value().pickle().ends_with(b"ueu."), "what is within is closed before");
    }
}
