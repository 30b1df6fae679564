//! The name that was probably meant by an unknown one.

use crate::core::algorithm::Algorithm;
use std::str::FromStr;

/// The one of `known` that is most similar to `text`, if one is similar. Up to every third letter, or one letter of a
/// short name, can be missing, added, replaced or swapped with its neighbour. Otherwise this is the first name that
/// `text` begins, with three letters or more. Capitals are ignored; the first of equals wins.
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.trim().to_lowercase();
    let most = (text.chars().count() / 3).max(1);
    let distance = |name: &str| strsim::osa_distance(&text, &name.to_lowercase());
    let known: Vec<&str> = known.into_iter().collect();
    let close = known.iter().map(|name| (distance(name), *name)).filter(|(far, _)| *far <= most);
    let begun =
        || known.iter().find(|name| text.chars().count() > 2 && name.to_lowercase().starts_with(&text));
    close.min_by_key(|(far, _)| *far).map(|(_, name)| name).or_else(|| begun().copied())
}

/// The end of a sentence about a name that is none: "; did you mean ...?", or nothing.
pub(crate) fn did_you_mean(found: Option<&str>) -> String {
    found.map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

/// A text that is none of the valid names; its message lists them, and the nearest one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}{}", did_you_mean(*.nearest))]
pub struct UnknownName {
    problem: String,
    nearest: Option<&'static str>,
}

impl UnknownName {
    /// `text` is none of `known`, which are all there are.
    pub(crate) fn none_of(text: &str, known: &[&'static str]) -> Self {
        let problem = format!("{text:?} is not one of {}", known.join(", "));
        Self { problem, nearest: nearest(text, known.iter().copied()) }
    }
}

/// Reads an algorithm's name with its parameters, as `HERRINGBONE_ALGORITHM` holds it.
///
/// # Errors
/// [`UnknownName`], which unlike the error of [`Algorithm`]'s own `from_str` has the nearest name.
pub fn parse_algorithm(text: &str) -> Result<Algorithm, UnknownName> {
    Algorithm::from_str(text).map_err(|error| {
        let name = text.split('(').next().unwrap_or(text);
        let all = Algorithm::all();
        let known = all.iter().map(Algorithm::name).chain(["sharded", "weighted"]);
        let wrong = !known.clone().any(|known| known == name.trim());
        // Of a name that is right the parameters are wrong, and the message shows how those look.
        let nearest = if wrong { nearest(name, known) } else { None };
        let missing = text.matches('(').count().saturating_sub(text.matches(')').count());
        match missing {
            1.. if !wrong => UnknownName {
                problem: format!("a ) is missing: write {}{}", text.trim(), ")".repeat(missing)),
                nearest,
            },
            _ => UnknownName { problem: error.to_string(), nearest },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["shm", "tcp", "reduction_server"];
        let cases = [
            ("tpc", Some("tcp")),
            ("TCP", Some("tcp")),
            (" tcp ", Some("tcp")),
            ("sm", Some("shm")),
            ("reduce_server", Some("reduction_server")),
            ("reduction-sever", Some("reduction_server")),
            ("udp", None),
            ("", None),
            ("server", None),
            ("Redu", Some("reduction_server")),
            ("re", None),
        ];
        for (text, expected) in cases {
            assert_eq!(nearest(text, known), expected, "{text:?}");
        }
        assert_eq!(nearest("eth9", ["lo", "eth1", "eth0"]), Some("eth1"), "the first of equals");
    }

    #[test]
    fn algorithms_that_do_not_exist_have_a_nearest_one() {
        let said = |text: &str| parse_algorithm(text).unwrap_err().to_string();
        assert!(said("rign").ends_with("; did you mean ring?"), "{}", said("rign"));
        assert!(said("Radix(8,8)").ends_with("; did you mean radix?"));
        assert!(said("shraded").ends_with("; did you mean sharded?"));
        for text in ["nccl", "ring(2)", ""] {
            assert!(!said(text).contains("did you mean"), "{}", said(text));
        }
        assert_eq!(said("radix(8,8"), "a ) is missing: write radix(8,8)");
        assert_eq!(said("hierarchical(radix(2,2"), "a ) is missing: write hierarchical(radix(2,2))");
        assert_eq!(parse_algorithm("ring"), Ok(Algorithm::Ring));
    }
}
