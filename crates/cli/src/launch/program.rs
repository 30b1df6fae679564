//! Whether a program can be started, before anything is.

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
        refuse(format!("`{shown}` is no command"), "put its interpreter in front: `-- python train.py`")
    } else if Path::new(program).exists() {
        refuse(
            format!("`{shown}` is no command"),
            "write the path of a file that may be executed, like ./train, or its interpreter in front",
        )
    } else if is_path {
        refuse(format!("there is no file `{shown}`"), "check the path, which begins at this folder")
    } else {
        refuse(
            format!("there is no command `{shown}` in any folder of PATH"),
            "check its spelling, or write its path",
        )
    }
}

fn can_run(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}
