//! As much of JSON (RFC 8259) as a launcher's variable takes: objects, lists, texts and plain words.

/// A value. Numbers, `true`, `false` and `null` are kept as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Object(Vec<(String, Value)>),
    List(Vec<Value>),
    Text(String),
}

/// How deep values may lie in each other.
const DEPTH: usize = 32;

impl Value {
    /// `None` if the text is no JSON.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { rest: text };
        let value = reader.value(DEPTH)?;
        reader.skip_space();
        reader.rest.is_empty().then_some(value)
    }

    /// The member of an object.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let Value::Object(members) = self else { return None };
        members.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// The items of a list; none of anything else.
    pub(super) fn items(&self) -> &[Value] {
        if let Value::List(items) = self { items } else { &[] }
    }

    /// A text, or a number as it is written.
    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Whether the next letter is this one, which is then behind us.
    fn take(&mut self, letter: char) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(letter);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self
                .all(['{', '}'], |reader| {
                    let name = reader.string()?;
                    reader.take(':').then_some(())?;
                    Some((name, reader.value(depth)?))
                })
                .map(Value::Object),
            '[' => self.all(['[', ']'], |reader| reader.value(depth)).map(Value::List),
            '"' => self.string().map(Value::Text),
            _ => self.word().map(Value::Text),
        }
    }

    /// What stands between brackets, with commas between.
    fn all<T>(
        &mut self,
        [open, close]: [char; 2],
        mut each: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.take(open).then_some(())?;
        let mut found = Vec::new();
        if self.take(close) {
            return Some(found);
        }
        loop {
            found.push(each(self)?);
            if self.take(close) {
                return Some(found);
            }
            self.take(',').then_some(())?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.take('"').then_some(())?;
        let mut text = String::new();
        let mut letters = self.rest.chars();
        loop {
            match letters.next()? {
                '"' => break,
                '\\' => text.push(match letters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => {
                        let code = letters.as_str().get(..4)?;
                        letters = letters.as_str().get(4..)?.chars();
                        // Halves of a pair have no place in a name of a host.
                        char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                    }
                    other @ ('"' | '\\' | '/') => other,
                    _ => return None,
                }),
                letter => text.push(letter),
            }
        }
        self.rest = letters.as_str();
        Some(text)
    }

    fn word(&mut self) -> Option<String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || ['-', '+', '.'].contains(&letter);
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let is_known = ["true", "false", "null"].contains(&word) || word.parse::<f64>().is_ok();
        is_known.then(|| word.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_another_reader() {
        let texts = [
            r#"{"c": null, "cluster": {"a": ["x:1", "y:2"], "b": []}, "task": {"index": 3, "type": "a\n\"\u0041"}}"#,
            r#"[ 1.5e3 , -2, true, false, {}, [[]] ]"#,
            "\"a\"",
        ];
        for text in texts {
            let other: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(Value::parse(text), Some(same(&other)), "{text}");
        }
        let deep = "[".repeat(40) + &"]".repeat(40);
        for wrong in ["", "{", "{\"a\"}", "[1,]", "[1 2]", "\"a", "a", "{} {}", "\"\\x\"", "\"\\u12\"", &deep]
        {
            assert_eq!(Value::parse(wrong), None, "{wrong}");
        }
    }

    fn same(other: &serde_json::Value) -> Value {
        match other {
            serde_json::Value::Object(members) => {
                Value::Object(members.iter().map(|(name, value)| (name.clone(), same(value))).collect())
            }
            serde_json::Value::Array(items) => Value::List(items.iter().map(same).collect()),
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Number(number) if number.as_f64() == Some(1500.0) => {
                Value::Text("1.5e3".to_owned())
            }
            other => Value::Text(other.to_string()),
        }
    }
}
