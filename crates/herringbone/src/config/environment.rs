//! Variables of the environment, before anything is made of them.

use crate::{Error, Result};
use std::{collections::BTreeMap, env, ffi::OsString, fmt};

/// Variables and their values, as they were at one moment.
#[derive(Clone, Default)]
pub struct Environment(pub(super) BTreeMap<String, OsString>);

/// The value of a setting in an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The value, which is not empty.
    pub text: String,
    /// The variable that holds it; several, joined by colons, if the value is put together.
    pub variable: String,
}

impl Environment {
    /// This process's.
    pub fn of_process() -> Self {
        // A name that is not text is not one that we know.
        Self(env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect())
    }

    #[cfg(test)]
    pub(crate) fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// Those of these names.
    pub(super) fn only<'a>(&self, names: impl Iterator<Item = &'a str>) -> Self {
        let own = names.filter_map(|name| self.0.get_key_value(name));
        Self(own.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// The names, in the order of the alphabet.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A variable's value; none if it is set to nothing.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.0.get(name).map(|value| value.to_str()) {
            Some(None) => Err(Error::config(name, "it is not text in UTF-8")),
            value => Ok(value.flatten().filter(|value| !value.is_empty())),
        }
    }
}

impl fmt::Debug for Environment {
    /// The names only: there are secrets among the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
