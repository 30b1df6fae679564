//! The glossary and the code agree: each of its words is in the code, and those that it does without are in no name.

use super::{
    none,
    source::{Source, root, sources},
};
use std::fs;

/// In how many parts a name is a name: longer ones are sentences, as those of tests, in which words have their plain meaning.
const PARTS: usize = 3;
/// What stands before a name where it is defined.
const KEYWORDS: [&str; 14] = [
    "class", "const", "crate", "def", "enum", "fn", "for", "let", "mod", "mut", "pub", "static", "struct",
    "trait",
];

fn glossary() -> String {
    fs::read_to_string(root().join("GLOSSARY.md")).unwrap()
}

fn programs() -> impl Iterator<Item = Source> {
    let own = |path: &str| path.ends_with("tidy/words.rs");
    sources()
        .into_iter()
        .filter(move |source| source.path.ends_with(".rs") || source.path.ends_with(".py"))
        .filter(move |source| !own(&source.path))
}

#[test]
fn words_of_the_glossary_are_in_the_code() {
    let texts: Vec<String> = programs().map(|source| source.text.to_lowercase()).collect();
    let is_used = |word: &str| {
        let forms = [" ", "_", "-", ""].map(|between| word.to_lowercase().replace(' ', between));
        texts.iter().any(|text| forms.iter().any(|form| text.contains(form.as_str())))
    };
    let glossary = glossary();
    let terms = glossary.lines().filter_map(|line| Some(line.strip_prefix("**")?.split_once("**")?.0));
    let unused = terms.filter(|term| !is_used(term)).map(str::to_owned);
    none("the code uses the words of GLOSSARY.md", unused.collect());
    let quoted = glossary.split('`').skip(1).step_by(2);
    let is_type = |name: &&str| name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let defines = |name: &str| {
        let kinds = ["struct", "enum", "trait"].map(|kind| format!("{kind} {name} ").to_lowercase());
        texts.iter().any(|text| kinds.iter().any(|kind| text.contains(kind)))
    };
    let unknown = quoted.filter(is_type).filter(|name| !defines(name)).map(str::to_owned);
    none("the types that GLOSSARY.md names are in the code", unknown.collect());
}

#[test]
fn names_do_without_retired_words() {
    let glossary = glossary();
    let retired = retired(&glossary);
    assert!(retired.len() > 10, "GLOSSARY.md lists the words that are not used");
    let mut found = Vec::new();
    for source in programs() {
        let names = source.path.split(['/', '.']).map(|name| (0, name)).chain(defined(&source.text));
        let wrong = names.filter_map(|(line, name)| Some((line, name, retired_in(name, &retired)?)));
        found.extend(wrong.map(|(line, name, word)| format!("{}:{line}: {word} in {name}", source.path)));
    }
    none("GLOSSARY.md says which words are not used in names, and what to write", found);
}

/// The words of the first column of the table of words that are not used.
fn retired(glossary: &str) -> Vec<&str> {
    let table = glossary.split_once("| not used |").map_or("", |(_, table)| table);
    let rows = table.lines().skip(2).filter_map(|line| line.strip_prefix('|')?.split('|').next());
    rows.flat_map(|cell| cell.split(',').map(str::trim)).collect()
}

/// The retired word that is part of a name, if one is.
fn retired_in<'a>(name: &str, retired: &[&'a str]) -> Option<&'a str> {
    let mut parts = vec![String::new()];
    for character in name.chars() {
        let last = parts.last_mut()?;
        match character {
            '_' => parts.push(String::new()),
            _ if character.is_uppercase() && last.ends_with(char::is_lowercase) => {
                parts.push(character.to_string());
            }
            _ => last.push(character),
        }
    }
    parts.retain(|part| !part.is_empty());
    let is_in = |word: &&&str| {
        let is_word = |part: &String| {
            let part = part.to_lowercase();
            part == **word || part.strip_suffix('s') == Some(**word)
        };
        parts.iter().any(is_word)
    };
    (parts.len() <= PARTS).then(|| retired.iter().find(is_in).copied())?
}

/// The names that a Rust or Python file defines, each with its line: behind a keyword, before a colon or an equals sign.
fn defined(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_comment = |line: &str| line.trim_start().starts_with("//") || line.trim_start().starts_with('#');
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| !is_comment(line));
    lines.flat_map(|(number, line)| {
        let is_name = |character: char| character.is_alphanumeric() || character == '_';
        let words = line.split(move |character| !is_name(character)).filter(|word| !word.is_empty());
        let mut before = "";
        words.filter_map(move |word| {
            let at = word.as_ptr() as usize - line.as_ptr() as usize;
            let after = &line[at + word.len()..];
            let start = line[..at].trim();
            let is_typed =
                after.starts_with(": ") && (start.is_empty() || start.ends_with(['(', ',', '{', '|', '*']));
            let is_assigned = start.is_empty() && after.starts_with(" = ");
            let is_defined = KEYWORDS.contains(&before) || is_typed || is_assigned;
            before = word;
            is_defined.then_some((number, word))
        })
    })
}

#[test]
fn retired_words_are_found_where_they_are_defined() {
    let found = |text: &str| {
        let names =
            defined(text).filter_map(|(line, name)| Some((line, retired_in(name, &["told", "heir"])?)));
        names.collect::<Vec<_>>()
    };
    let rust = "struct HeirGroup {\n    told: u8,\n}\n// let told = 1;\nfn is_told(heirs: u8) {\n    let mut told = told(1);\n}";
    assert_eq!(found(rust), [(1, "heir"), (2, "told"), (5, "told"), (5, "heir"), (6, "told")]);
    assert_eq!(found("def told(x):\n    told = 1\n    return x.told"), [(1, "told"), (2, "told")]);
    let fine = "fn all_ranks_are_told_of_it() {\n    print(\"told\");\n    let toldest = Heirloom::told;\n}";
    assert_eq!(found(fine), []);
    assert_eq!(
        retired("x\n| not used | write |\n|---|---|\n| told, heir | sent |\n| doom | failure |"),
        ["told", "heir", "doom"]
    );
}
