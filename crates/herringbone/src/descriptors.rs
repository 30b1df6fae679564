//! The limit of this process's descriptors: each link takes one or two.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the most that this process is allowed to set, as the processes of large jobs need. Many systems
/// begin with 1,024, for programs that call `select`. If it cannot be raised it stays, and a warning comes when it is
/// reached.
pub fn raise_limit_of_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the test's second process is told: the limit is the whole process's.
    const ALONE: &str = "DESCRIPTORS_TEST_ALONE";

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        if std::env::var(ALONE).is_err() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "descriptors::tests::the_limit_is_raised_as_far_as_it_may_be"]);
            assert!(again.env(ALONE, "1").status().unwrap().success());
            return;
        }
        let set = |current, maximum| {
            let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
            setrlimit(Resource::Nofile, limit).unwrap();
        };
        for (current, maximum) in [(200, 300), (250, 250)] {
            set(current, maximum);
            raise_limit_of_descriptors();
            assert_eq!(getrlimit(Resource::Nofile).current, Some(maximum));
        }
    }
}
