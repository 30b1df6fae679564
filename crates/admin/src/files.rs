//! Metrics as a file, for the textfile collector of Prometheus's node exporter.

use crate::metrics;
use crate::outlook::Outlook;
use herringbone::log::warn;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// How often the file is written.
const PERIOD: Duration = Duration::from_secs(15);

/// Writes the metrics of a process into a directory again and again, from a thread. The file has the process's
/// [name](Outlook::name), even after a change of the name.
pub(crate) fn write(outlook: &Arc<Outlook>, directory: &str, who: String) -> io::Result<()> {
    let (outlook, directory) = (Arc::downgrade(outlook), PathBuf::from(directory));
    let spawned = thread::Builder::new().name("hb-admin-file".to_owned());
    spawned.spawn(move || run(&outlook, &directory, &who)).map(drop)
}

fn run(outlook: &Weak<Outlook>, directory: &Path, who: &str) {
    let (mut has_warned, mut last, mut own) = (false, None, None::<(PathBuf, u64)>);
    while let Some(outlook) = outlook.upgrade() {
        // Between two jobs the file of the last one stays.
        let name = outlook.name().or_else(|| last.clone());
        let Some(name) = name else {
            thread::sleep(PERIOD);
            continue;
        };
        let path = directory.join(format!("herringbone-{name}.prom"));
        let replaced = replace(&path, &metrics::text(&outlook));
        // If the rank has another number in its next job, its old file would be scraped forever, unless another rank has taken it.
        if last.replace(name.clone()).is_some_and(|before| before != name)
            && let Some((path, _)) = own.take().filter(|(path, file)| file_at(path) == Some(*file))
        {
            let _removed = fs::remove_file(path);
        }
        own = file_at(&path).map(|file| (path.clone(), file));
        if let Err(error) = replaced {
            outlook.count_unwritten();
            if !std::mem::replace(&mut has_warned, true) {
                let what = format_args!("HERRINGBONE_METRICS_FILE: cannot write {}: {error}", path.display());
                warn(who, format_args!("{what}; retrying every {} s", PERIOD.as_secs()));
            }
        }
        drop(outlook);
        thread::sleep(PERIOD);
    }
}

/// Which file there is at a path.
fn file_at(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
}

/// Writes a file at once: nobody reads half of it.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // The collector reads names that end in .prom.
    let unfinished = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    // A killed process might have left the file, or somebody a link: neither is written to.
    let _removed = fs::remove_file(&unfinished);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&unfinished, path));
    written.inspect_err(|_| {
        // The error is reported; half a file does no harm.
        let _removed = fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_and_nothing_is_left_of_one_that_failed() {
        let folder = std::env::temp_dir().join(format!("herringbone-metrics-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("herringbone-rank-0.prom");
        for text in ["a 1\n", "a 2\n"] {
            replace(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let full = Path::new("/dev/full/herringbone-rank-0.prom");
        assert!(replace(full, "a 3\n").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
