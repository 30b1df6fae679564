//! The progress of ranks: each has a file with a number, or with a note that the rank has done all its work.

use rustix::fs::OFlags;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::{env, fs, io};

/// A rank's variable with the path of its file, in which its program writes the number of each checkpoint.
pub(super) const PROGRESS_FILE: &str = "HERRINGBONE_PROGRESS_FILE";
/// More than the largest number and the end of its line take, in bytes.
const LONGEST: u64 = 24;
/// What a program writes in place of a number once a rank that starts again would need ranks that have not left.
const COMPLETE: &str = "complete";

/// What a rank's file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotedProgress {
    /// There is no file, or something else than a number, which is nothing to trust and no progress.
    Nothing,
    /// The number.
    At(u64),
    /// A rank that starts again needs the others, and finds nobody if they have left.
    Complete,
}

/// A folder that only this user can use, for the ranks' files; it goes with this value.
#[derive(Debug)]
pub(super) struct ProgressFiles(PathBuf);

impl ProgressFiles {
    /// Makes the folder; `name` is one that nobody can guess.
    ///
    /// # Errors
    /// The folder for temporary files cannot be used.
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let of_all = env::temp_dir();
        // Programs can begin in another folder.
        let folder = std::path::absolute(&of_all)?.join(format!("herringbone-launch-{name}"));
        let explained = |error: io::Error| {
            let folder = of_all.display();
            let text = format!(
                "cannot create a folder for the ranks' progress in {folder}: {error}; set TMPDIR to a writable folder"
            );
            io::Error::new(error.kind(), text)
        };
        DirBuilder::new().mode(0o700).create(&folder).map_err(explained)?;
        Ok(Self(folder))
    }

    /// Where a rank's file is, once its program has written one.
    pub(super) fn path(&self, rank: usize) -> PathBuf {
        self.0.join(rank.to_string())
    }

    /// What a rank's file has.
    pub(super) fn read(&self, rank: usize) -> NotedProgress {
        let text = self.text(rank).unwrap_or_default();
        match text.trim_end() {
            COMPLETE => NotedProgress::Complete,
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_or(NotedProgress::Nothing, NotedProgress::At)
            }
            _ => NotedProgress::Nothing,
        }
    }

    /// The rank has not done all: it starts again.
    pub(super) fn take_back(&self, rank: usize) {
        // A file that cannot be removed makes the launcher wait for the rank, as it would without any.
        let _ = fs::remove_file(self.path(rank));
    }

    fn text(&self, rank: usize) -> Option<String> {
        // Neither a pipe nor a link can lead elsewhere or keep the launcher waiting.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(self.path(rank)).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text)
    }
}

impl Drop for ProgressFiles {
    fn drop(&mut self) {
        // One that is left behind harms nobody, and the job's result is known.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn files(name: &str) -> ProgressFiles {
        ProgressFiles::create(&format!("{name}-{}", std::process::id())).unwrap()
    }

    #[test]
    fn numbers_are_read_and_nothing_else_is() {
        let files = files("numbers");
        use NotedProgress::{At, Complete, Nothing};
        assert_eq!(files.read(0), Nothing, "there is no file");
        for (text, expected) in [
            ("0", At(0)),
            ("17\n", At(17)),
            ("18446744073709551615\r\n", At(u64::MAX)),
            ("complete\n", Complete),
            ("18446744073709551616", Nothing),
            ("", Nothing),
            ("+1", Nothing),
            ("-1", Nothing),
            (" 1", Nothing),
            ("1 2", Nothing),
            ("seven", Nothing),
            ("completed", Nothing),
            ("\u{0661}", Nothing),
        ] {
            fs::write(files.path(0), text).unwrap();
            assert_eq!(files.read(0), expected, "{text:?}");
        }
        fs::write(files.path(0), b"\xff").unwrap();
        assert_eq!(files.read(0), Nothing);
        fs::write(files.path(0), vec![b'1'; 1 << 20]).unwrap();
        assert_eq!(files.read(0), Nothing, "it is too long");
        fs::write(files.path(0), "complete").unwrap();
        files.take_back(0);
        assert_eq!(files.read(0), Nothing);
    }

    #[test]
    fn what_is_no_file_is_no_progress_and_keeps_nobody_waiting() {
        let files = files("kinds");
        fs::write(files.path(9), "1").unwrap();
        symlink(files.path(9), files.path(0)).unwrap();
        fs::create_dir(files.path(1)).unwrap();
        mknodat(CWD, files.path(2), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!([0, 1, 2].map(|rank| files.read(rank)), [NotedProgress::Nothing; 3]);
    }

    #[test]
    fn the_folder_is_of_this_user_alone_and_goes_with_the_job() {
        let files = files("folder");
        let folder = files.path(0).parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(ProgressFiles::create(&format!("folder-{}", std::process::id())).is_err(), "it is there");
        fs::write(files.path(0), "1").unwrap();
        drop(files);
        assert!(!folder.exists());
    }
}
