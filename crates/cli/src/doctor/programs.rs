//! Settings and launchers in the environment.

use super::finding::{Finding, Remedy, shell_word};
use crate::names::setting_named;
use herringbone::settings::{ALL, Environment, UnknownSetting, unknown};
use herringbone::{Error, ErrorKind, token_openness};

/// A finding for each setting that cannot be used and for each name that is none, or one for all.
pub(super) fn settings(environment: &Environment) -> Vec<Finding> {
    let wrong = |error: &Error| {
        let setting = match error.kind() {
            ErrorKind::Config { setting, .. } => setting.as_str(),
            _ => "",
        };
        Finding::wrong(CHECK, error.to_string(), remedy(setting))
    };
    let mut findings: Vec<Finding> = environment.problems().iter().map(wrong).collect();
    findings.extend(unknown(environment).iter().map(misspelt));
    findings.extend(open_token(environment));
    if findings.is_empty() {
        return vec![Finding::ok(CHECK, "all settings in the environment are valid")];
    }
    findings
}

const CHECK: &str = "settings";

/// Shows the setting of one of these variables with what it can be.
fn remedy(variables: &str) -> Remedy {
    match variables.split([':', ',']).find_map(|name| setting_named(name).ok()) {
        Some(setting) => Remedy::new(
            "this shows the allowed values and the variable with the wrong one: correct it",
            format!("herringbone settings {}", setting.trim_start_matches("HERRINGBONE_")),
        ),
        None => Remedy::new("this shows all settings and their problems", "herringbone settings"),
    }
}

fn misspelt(name: &UnknownSetting) -> Finding {
    let own = name.name();
    let is_word = own.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
    let remedy = match name.nearest().filter(|_| is_word) {
        Some(meant) => Remedy::new(
            format!("if you meant {meant}, set that instead"),
            format!("export {meant}=\"${own}\"; unset {own}"),
        ),
        None if is_word => Remedy::new("remove it, or use the name of a setting", format!("unset {own}")),
        // A shell cannot name it.
        None => Remedy::new(
            "change the program that starts this one: it must not set this variable",
            "herringbone settings",
        ),
    };
    Finding::warning(CHECK, name.to_string(), remedy)
}

/// A token file that other users can read.
fn open_token(environment: &Environment) -> Option<Finding> {
    let setting = ALL.into_iter().find(|setting| setting.name == "HERRINGBONE_TOKEN_FILE")?;
    let path = setting.find(environment).ok()??.text;
    let why = token_openness(&path)?;
    let remedy = Remedy::new(
        "make it unreadable for others, and draw another token",
        format!("chmod 600 {}", shell_word(&path)),
    );
    Some(Finding::warning(CHECK, why, remedy))
}

/// The launcher, by its variables.
pub(super) fn launcher(environment: &Environment) -> Finding {
    const CHECK: &str = "launcher";
    match environment.place() {
        Ok(Some(place)) => Finding::ok(CHECK, place),
        Ok(None) => Finding::ok(
            CHECK,
            "no launcher has started this process, so programs started here run with one rank",
        ),
        Err(error) => Finding::wrong(
            CHECK,
            error.to_string(),
            Remedy::new(
                "use one launcher, or unset the variables of the other; these are set",
                "env | grep -E '(RANK|SIZE|MASTER_|SLURM_|OMPI_|PMI_|DMLC_)[A-Z_]*='",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_cannot_be_used_is_shown_by_its_name() {
        let command = |name: &str| remedy(name).command;
        assert_eq!(command("HERRINGBONE_ALGORITHM"), "herringbone settings ALGORITHM");
        assert_eq!(command("MASTER_ADDR:MASTER_PORT"), "herringbone settings STORE");
        assert_eq!(command("something else"), "herringbone settings");
    }
}
