//! The output of several processes in one, line by line.

use herringbone::log::LogFormat;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::{thread, time::Duration};

/// The longest piece that is kept until its line ends.
const LONGEST: u64 = 64 << 10;
/// How long output that a process outside the job can still hold open is waited for.
const HELD_OPEN: Duration = Duration::from_secs(1);
/// How lines of logs in JSON begin.
const JSON: &[u8] = b"{\"time\":";

/// Threads that copy output, each line behind the name of its source.
pub(super) struct Copies {
    /// How many threads are writing, and might have to wait for a slow reader.
    writing: Arc<AtomicUsize>,
    /// What each thread holds until its source has ended.
    open: mpsc::Sender<()>,
    all_ended: mpsc::Receiver<()>,
    log_format: LogFormat,
}

impl Copies {
    /// None yet. Lines of logs in JSON name their source themselves: they stay as they are, for programs that read them.
    pub(super) fn new(log_format: LogFormat) -> Self {
        let (open, all_ended) = mpsc::channel();
        Self { writing: Arc::default(), open, all_ended, log_format }
    }

    /// Copies `from` to `to` until either ends. A writer that finds nobody who reads learns it as in a pipeline.
    pub(super) fn start(
        &self,
        name: &str,
        from: impl Read + Send + 'static,
        mut to: impl Write + Send + 'static,
    ) -> io::Result<()> {
        let prefix = format!("[{name}] ").into_bytes();
        let (writing, open) = (Arc::clone(&self.writing), self.open.clone());
        let has_json = self.log_format == LogFormat::Json;
        let copy = move || {
            let _open = open;
            let mut from = BufReader::new(from);
            while let Ok(Some(line)) = next_line(&mut from, &prefix) {
                let line = if has_json { without_prefix(&line, &prefix) } else { &line[..] };
                writing.fetch_add(1, Ordering::SeqCst);
                let written = to.write_all(line).and_then(|()| to.flush());
                writing.fetch_sub(1, Ordering::SeqCst);
                if written.is_err() {
                    break;
                }
            }
        };
        thread::Builder::new().name("hb-lines".to_owned()).spawn(copy).map(drop)
    }

    /// Waits until all that was said is written. A process that has left the job can keep its output open forever:
    /// this does not wait for it.
    pub(super) fn finish(self) {
        let Self { writing, open, all_ended, .. } = self;
        drop(open);
        while let Err(mpsc::RecvTimeoutError::Timeout) = all_ended.recv_timeout(HELD_OPEN) {
            if writing.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
    }
}

/// A line of a log in JSON as its source has written it, and any other one as it is.
fn without_prefix<'a>(line: &'a [u8], prefix: &[u8]) -> &'a [u8] {
    line.strip_prefix(prefix).filter(|own| own.starts_with(JSON)).unwrap_or(line)
}

/// The next line behind `prefix`, ended even if the source's last one is not; `None` at the end.
fn next_line(from: &mut impl BufRead, prefix: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut line = prefix.to_vec();
    if from.take(LONGEST).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        line.push(b'\n');
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mut text: &[u8]) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| next_line(&mut text, b"[rank 0] ").unwrap()).collect()
    }

    #[test]
    fn lines_stand_behind_their_rank_and_end() {
        assert_eq!(lines(b""), [b""; 0]);
        assert_eq!(lines(b"a\n\nb \xff"), [&b"[rank 0] a\n"[..], b"[rank 0] \n", b"[rank 0] b \xff\n"]);
    }

    #[test]
    fn lines_in_json_have_no_prefix() {
        let json = b"[rank 0] {\"time\":\"x\"}\n";
        assert_eq!(without_prefix(json, b"[rank 0] "), b"{\"time\":\"x\"}\n");
        for other in [&b"[rank 0] {}\n"[..], b"{\"time\":1}\n"] {
            assert_eq!(without_prefix(other, b"[rank 0] "), other);
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let found = lines(&vec![b'x'; 3 * LONGEST as usize / 2]);
        let longest = LONGEST as usize + b"[rank 0] \n".len();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [longest, longest - LONGEST as usize / 2]);
    }
}
