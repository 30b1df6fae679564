//! `herringbone status --dump`: the flight records of all members of a job, one file each.

use crate::failure::Failure;
use herringbone::flight::{FlightFormat, FlightRecord, write_record};
use herringbone::status::{AskError, Role, ask_flight};
use herringbone_admin::ask::{AskedMember, Round};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

/// How long a member has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many members are asked at once.
const AT_ONCE: usize = 64;

/// The form of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DumpFormat {
    /// JSON, of workers and reducers
    #[default]
    Json,
    /// For torchfrtrace, of workers
    Torch,
}

/// The result of asking a member.
struct Dumped {
    name: String,
    files: Result<Vec<PathBuf>, String>,
}

/// Writes the records of all members into a folder, and says what came of each.
pub(super) fn run(
    round: &Round,
    token: Option<&str>,
    folder: &Path,
    format: DumpFormat,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let cannot = |error| Failure::system("cannot create the folder of --dump")(error);
    fs::create_dir_all(folder).map_err(cannot)?;
    let wanted = |member: &&AskedMember| format == DumpFormat::Json || member.role != Some(Role::Reducer);
    let members: Vec<&AskedMember> = round.members.iter().filter(wanted).collect();
    let mut written = 0;
    for some in members.chunks(AT_ONCE) {
        let dump = |member: &&AskedMember| dump(member, round.job, token, folder, format);
        let dumped: Vec<Dumped> = thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|member| scope.spawn(move || dump(member))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for Dumped { name, files } in dumped {
            match files {
                Ok(files) if files.is_empty() => writeln!(out, "{name}: has no record")?,
                Ok(files) => {
                    written += files.len();
                    for file in files {
                        writeln!(out, "{name}: {}", file.display())?;
                    }
                }
                Err(problem) => writeln!(out, "{name}: no record: {problem}")?,
            }
        }
    }
    if written == 0 {
        let problem = "no member has sent a record".to_owned();
        let hint = "the lines above show why; ask again when a member answers";
        return Err(Failure::Unanswered { problem, hint });
    }
    if format == DumpFormat::Torch {
        let folder = folder.display();
        writeln!(
            out,
            "torchfrtrace --prefix rank_ {folder} compares them; with -j it lists the calls of each rank"
        )?;
    }
    Ok(())
}

fn dump(member: &AskedMember, job: u64, token: Option<&str>, folder: &Path, format: DumpFormat) -> Dumped {
    if let Err(error) = &member.heard {
        return Dumped { name: member.name.clone(), files: Err(error.to_string()) };
    }
    // A reducer serves other jobs, too.
    let of_job = Some(job).filter(|job| *job != 0);
    let files = ask_flight(&member.address, token, of_job, PATIENCE)
        .map_err(|error: AskError| error.to_string())
        .and_then(|answer| {
            let records = answer.records.into_iter().filter(|record| job == 0 || record.job == job);
            let write = |record: FlightRecord| {
                let path = folder.join(file_name(&member.address, &record, format));
                write_record(&path, &record, written_as(format)).map(|()| path)
            };
            records.map(write).collect::<Result<_, _>>().map_err(|error| error.to_string())
        });
    Dumped { name: member.name.clone(), files }
}

fn written_as(format: DumpFormat) -> FlightFormat {
    match format {
        DumpFormat::Json => FlightFormat::Json,
        DumpFormat::Torch => FlightFormat::Torch,
    }
}

/// `rank_3.json`, or `rank_3` for torch, which takes the rank from there; of a reducer its address and the job.
fn file_name(address: &str, record: &FlightRecord, format: DumpFormat) -> String {
    let suffix = written_as(format).suffix();
    match record.role {
        Role::Worker => format!("rank_{}{suffix}", record.rank),
        _ => {
            let address: String =
                address.chars().map(|char| if char.is_ascii_alphanumeric() { char } else { '-' }).collect();
            format!("reducer_{address}_{:016x}{suffix}", record.job)
        }
    }
}
