//! JSON whose objects have each key once, so that no reader has to choose between two values.

use serde_core::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Reads one value.
///
/// # Errors
/// If the text is no JSON, or an object in it has a key twice; with the line and the column.
pub(crate) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).map(|Unique(value)| value)
}

/// A value within which each object has each key once.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_any(UniqueVisitor).map(Self)
    }
}

/// Takes what a reader of JSON finds.
struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<Value, E> {
        Ok(given.into())
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<Value, E> {
        Ok(given.into())
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<Value, E> {
        Ok(given.into())
    }

    fn visit_f64<E: Error>(self, given: f64) -> Result<Value, E> {
        Number::from_f64(given).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, given: &str) -> Result<Value, E> {
        Ok(given.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            found.push(item);
        }
        Ok(found.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if found.contains_key(&key) {
                return Err(A::Error::custom(format!(
                    "an object has the key {key:.80?} twice; keep one of them"
                )));
            }
            let Unique(value) = fields.next_value()?;
            found.insert(key, value);
        }
        Ok(found.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_usual() {
        let text = r#"{"a": [null, true, -1, 18446744073709551615, 0.5, "é\n", {}], "b": {"a": 1}}"#;
        assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for text in ["", "1 2", "{", "[1,]", "nan", "1e999", &"[".repeat(1000)] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused_wherever_it_is() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"c": 0, "a": 1, "\u0061": 2}}]"#] {
            let failure = parse(text).unwrap_err().to_string();
            assert!(failure.starts_with("an object has the key \"a\" twice; keep one of them"), "{failure}");
        }
    }
}
