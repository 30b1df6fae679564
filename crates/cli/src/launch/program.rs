//! Checks a program before anything is started.

use crate::failure::Failure;
use rustix::fs::{Access, access};
use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Refuses a program that is not there or cannot be executed.
pub(super) fn check(program: &OsStr) -> Result<(), Failure> {
    let shown = program.to_string_lossy();
    let is_path = program.as_bytes().contains(&b'/');
    let found = match is_path {
        true => can_run(Path::new(program)),
        false => env::split_paths(&env::var_os("PATH").unwrap_or_default())
            .any(|folder| can_run(&folder.join(program))),
    };
    let refuse = |problem, hint| Err(Failure::Usage { problem, hint });
    if found {
        Ok(())
    } else if Path::new(program).is_file() && shown.ends_with(".py") {
        refuse(format!("`{shown}` is not a command"), "put its interpreter in front: `-- python train.py`")
    } else if Path::new(program).exists() {
        refuse(
            format!("`{shown}` is not a command"),
            "write the path of an executable file, like ./train, or put its interpreter in front",
        )
    } else if is_path {
        refuse(format!("file `{shown}` does not exist"), "check the path, which is relative to this folder")
    } else {
        refuse(
            format!("command `{shown}` is not in any folder of PATH"),
            "check its spelling, or write its path",
        )
    }
}

fn can_run(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
