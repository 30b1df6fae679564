//! The Python that programs run with: its version, and whether it has herringbone, torch and numpy.

use super::finding::{Finding, Remedy, shell_word};
use serde_json::Value;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{mem, thread};

/// The oldest torch that the backend takes, and the newest with which every feature was tried (docs/torch-versions.md).
const TORCH: ((u64, u64), (u64, u64)) = ((2, 10), (2, 15));
/// The oldest Python.
const PYTHON: (u64, u64) = (3, 10);
/// How long a Python can take to start and list its packages.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// More than this no answer is read.
const LONGEST: usize = 64 << 10;
/// How long the output of a Python can take to arrive after its end.
const REST: Duration = Duration::from_secs(1);

/// Prints what is installed, without importing it, which would take seconds. A folder of the name is no package.
const ASK: &str = "
import json, sys
from importlib import metadata, util
def version(name):
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return 'from ' + spec.origin
names = ['torch', 'numpy', 'herringbone']
print(json.dumps({'python': list(sys.version_info[:2]), 'path': sys.executable, **{name: version(name) for name in names}}))
";

const CHECK: &str = "python";

/// What an answer came to.
struct PythonAnswer {
    status: ExitStatus,
    out: Vec<u8>,
    errors: Vec<u8>,
}

/// A Python, and what it has. `given` is the one that `--python` names; else it is the first on the path, and programs in Rust need
/// none.
pub(super) fn check(given: Option<&Path>) -> Finding {
    let (program, is_given) = (given.unwrap_or(Path::new("python3")), given.is_some());
    let shown = shell_word(&program.display().to_string());
    match heard_of(program) {
        Ok(Some(heard_of)) => match last_json(&heard_of.out).filter(|_| heard_of.status.success()) {
            Some(versions) => judge(&versions, is_given),
            None => unusable(
                is_given,
                format!("{shown} does not run Python: {}", last_line(&heard_of.errors)),
                Remedy::new("pass one of these with --python", OTHERS),
            ),
        },
        Ok(None) => unusable(
            is_given,
            format!("{shown} has not answered for {} s", PATIENCE.as_secs()),
            Remedy::new(
                "if this prints `fine`, a sitecustomize module or a .pth file hangs at the start; if not, pass another Python with --python",
                format!("timeout 10 {shown} -I -S -c pass && echo fine"),
            ),
        ),
        Err(error) if is_given => Finding::wrong(
            CHECK,
            format!("{shown} cannot be started: {error}"),
            Remedy::new("pass one of these with --python", OTHERS),
        ),
        Err(_) => Finding::ok(CHECK, "no python3 on the path; Rust programs need none"),
    }
}

/// The finding for a Python that programs cannot use. If `--python` does not name it, the job might use
/// another one.
fn unusable(is_given: bool, says: String, remedy: Remedy) -> Finding {
    match is_given {
        true => Finding::wrong(CHECK, says, remedy),
        false => Finding::warning(CHECK, format!("{says}; Rust programs need no Python"), remedy),
    }
}

/// Shows which Pythons there are.
const OTHERS: &str = "command -v python3 python3.14 python3.13 python3.12 python3.11 python3.10";

/// What the program answers to [`ASK`], or `None` if it has not by the end of [`PATIENCE`]: then it is killed.
fn heard_of(program: &Path) -> io::Result<Option<PythonAnswer>> {
    let mut command = Command::new(program);
    let command =
        command.args(["-c", ASK]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    // Both are read to their ends so that no write waits. A process that the program has started can keep them open for longer.
    let (out, errors) = (Reading::begin(out), Reading::begin(errors));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    };
    // Both have a moment, which they need only if the processor is busy or another process keeps them open.
    let end = (Instant::now() + REST).min(deadline);
    Ok(Some(PythonAnswer { status, out: out.by(end), errors: errors.by(end) }))
}

/// The beginning of a pipe's output. A thread reads all of it.
struct Reading {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Says nothing, and is closed at the end of the pipe.
    end: Receiver<()>,
}

impl Reading {
    fn begin(from: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (at_end, end) = channel();
        let kept = bytes.clone();
        let read = move || {
            // What cannot be read is missing in the answer, which is then refused.
            let _ended = from.map(|from| keep(from, &kept));
            drop::<Sender<()>>(at_end);
        };
        // Without a thread there is no answer.
        let _none = thread::Builder::new().name("hb-doctor".to_owned()).spawn(read);
        Self { bytes, end }
    }

    /// What has come until the pipe ends, or at this moment.
    fn by(self, end: Instant) -> Vec<u8> {
        let _ended = self.end.recv_timeout(end.saturating_duration_since(Instant::now()));
        mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Appends what comes, up to [`LONGEST`], and reads the rest.
fn keep(mut from: impl Read, kept: &Mutex<Vec<u8>>) -> io::Result<()> {
    let mut part = [0; 4096];
    loop {
        let read = match from.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => part.get(..read).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = LONGEST.saturating_sub(kept.len()).min(read.len());
        kept.extend_from_slice(read.get(..room).unwrap_or_default());
    }
}

/// What a Python prints before its answer is that of modules which it imports at its start.
fn last_json(out: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(out);
    serde_json::from_str(text.lines().last()?).ok().filter(Value::is_object)
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it prints nothing").to_owned()
}

/// What to say of `{"python": [3, 12], "path": ..., "torch": "2.15.0" or null, "numpy": ..., "herringbone": ...}`.
fn judge(versions: &Value, is_given: bool) -> Finding {
    let path = versions["path"].as_str().filter(|path| !path.is_empty()).unwrap_or("python3");
    let pip = format!("{} -m pip install", shell_word(path));
    let python = (versions["python"][0].as_u64().unwrap_or(0), versions["python"][1].as_u64().unwrap_or(0));
    if python < PYTHON {
        let says = format!("{path} is Python {}.{}; Herringbone needs 3.10 or later", python.0, python.1);
        return unusable(is_given, says, Remedy::new("pass one of these with --python", OTHERS));
    }
    let has = |name: &str| versions[name].as_str();
    let shown = |name: &str| has(name).map_or(format!("no {name}"), |version| format!("{name} {version}"));
    let says = format!("{path} has {}, {} and {}", shown("torch"), shown("numpy"), shown("herringbone"));
    if has("herringbone").is_none() {
        let extra = if has("torch").is_some() { "torch" } else { "numpy" };
        let remedy = Remedy::new(
            "install it into this Python; if you have built a wheel, write its path instead of the name",
            format!("{pip} 'herringbone[{extra}]'"),
        );
        let says = format!("{says}: its programs do not find Herringbone");
        return unusable(is_given, says, remedy);
    }
    let (oldest, newest) = TORCH;
    let Some(torch) = has("torch") else {
        return match has("numpy") {
            Some(_) => Finding::ok(CHECK, format!("{says}; numpy programs need no torch")),
            None => Finding::warning(
                CHECK,
                format!("{says}: only programs without both can run"),
                Remedy::new(
                    "install the packages that your programs use",
                    format!("{pip} 'herringbone[numpy]'"),
                ),
            ),
        };
    };
    match release(torch) {
        Some(version) if version < oldest => unusable(
            is_given,
            format!("{says}; the backend needs torch {}.{} or later", oldest.0, oldest.1),
            Remedy::new("install a newer torch", format!("{pip} 'torch>={}.{}'", oldest.0, oldest.1)),
        ),
        Some(version) if version <= newest => Finding::ok(CHECK, says),
        _ => Finding::warning(
            CHECK,
            format!("{says}; the newest tested torch is {}.{}", newest.0, newest.1),
            Remedy::new(
                "if something fails, install the newest tested torch",
                format!("{pip} 'torch<{}.{}'", newest.0, newest.1 + 1),
            ),
        ),
    }
}

/// The first two numbers of a version.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{self, Ok, Warning, Wrong};
    use super::*;
    use serde_json::json;
    use std::io::Write;

    fn judged(python: [u64; 2], torch: Option<&str>, herringbone: Option<&str>) -> (Severity, String) {
        let versions = json!({
            "python": python, "path": "python3", "torch": torch, "numpy": "2.0", "herringbone": herringbone
        });
        let finding = judge(&versions, true);
        (finding.level, finding.remedy.map(|remedy| remedy.command).unwrap_or_default())
    }

    #[test]
    fn torch_is_judged_by_its_version() {
        let own = Some("0.1.0");
        assert_eq!(judged([3, 12], Some("2.15.0+cpu"), own).0, Ok);
        let old = (Wrong, "python3 -m pip install 'torch>=2.10'".to_owned());
        assert_eq!(judged([3, 12], Some("2.9.1"), own), old);
        let new = (Warning, "python3 -m pip install 'torch<2.16'".to_owned());
        assert_eq!(judged([3, 12], Some("2.16.0"), own), new);
        assert_eq!(judged([3, 12], None, own).0, Ok);
        assert_eq!(judged([3, 9], Some("2.15.0"), own).0, Wrong);
    }

    #[test]
    fn a_python_without_herringbone_is_wrong_if_it_was_named() {
        for (torch, extra) in [(Some("2.14.1"), "torch"), (None, "numpy")] {
            let expected = (Wrong, format!("python3 -m pip install 'herringbone[{extra}]'"));
            assert_eq!(judged([3, 12], torch, None), expected);
        }
        let empty = json!({ "python": [3, 12], "path": "python3", "torch": null, "numpy": null, "herringbone": null });
        assert_eq!(judge(&empty, false).level, Warning);
        let bare = json!({ "python": [3, 12], "path": "python3", "torch": null, "numpy": null, "herringbone": "0.1.0" });
        assert_eq!(judge(&bare, true).level, Warning, "neither torch nor numpy");
    }

    #[test]
    fn a_python_that_nobody_has_named_stops_no_job() {
        let old_torch = json!({ "python": [3, 12], "path": "python3", "torch": "2.9.1", "numpy": "2.0", "herringbone": "0.1.0" });
        let old_python =
            json!({ "python": [3, 9], "path": "python3", "torch": null, "numpy": null, "herringbone": null });
        for versions in [old_torch, old_python] {
            assert_eq!(judge(&versions, true).level, Wrong);
            assert_eq!(judge(&versions, false).level, Warning);
        }
    }

    #[test]
    fn a_python_that_is_none_is_wrong() {
        assert_eq!(check(Some(Path::new("/no/such/python"))).level, Wrong);
        assert_eq!(check(Some(Path::new("false"))).level, Wrong);
    }

    #[test]
    fn what_has_come_counts_though_the_pipe_stays_open() {
        let (reader, mut writer) = io::pipe().unwrap();
        let reading = Reading::begin(Some(reader));
        writer.write_all(b"{}").unwrap();
        while reading.bytes.lock().unwrap().is_empty() {
            thread::sleep(LOOK);
        }
        assert_eq!(reading.by(Instant::now()), b"{}");
        let (reader, mut writer) = io::pipe().unwrap();
        let reading = Reading::begin(Some(reader));
        writer.write_all(&vec![7; LONGEST + 1]).unwrap();
        drop(writer);
        assert_eq!(reading.by(Instant::now() + PATIENCE), vec![7; LONGEST], "no more than this");
    }

    /// The page and the record name the versions that are used here.
    #[test]
    fn the_versions_are_those_of_the_record() {
        let read = |path: &str| {
            std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        let ((major, oldest), (_, newest)) = TORCH;
        assert!(read("docs/torch-versions.md").contains(&format!("torch from {major}.{oldest} on")));
        let record = read("record/matrix.md");
        assert!(record.contains(&format!("{major}.{newest}.")), "make matrix has tried another torch");
        assert!(
            !record.contains(&format!("{major}.{}.", newest + 1)),
            "a newer torch was tried: raise TORCH"
        );
    }
}
