//! Files that a user names: a token, constants, links, a job's figures. Each is read whole into memory, so only regular
//! files of a bounded size are accepted. A FIFO would never end, and a device might have no end at all.

use rustix::fs::OFlags;
use std::{
    fs::{File, FileType, OpenOptions, metadata},
    io::{self, Read},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

/// The most bytes of a file.
pub const LARGEST_FILE: u64 = 64 << 20;

/// Why a file was not read. The text does not have its name, which the caller has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system refuses it.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is no regular file; the text has its kind.
    #[error("it is {0}, and only regular files are read: name a file, and copy into it what this holds")]
    Irregular(&'static str),
    /// It is larger than this number of bytes.
    #[error("it has more than {} MiB, which is the most that is read: is it the right file?", .0 >> 20)]
    Large(u64),
    /// It holds bytes that are no text.
    #[error("it is not text in UTF-8")]
    NotText,
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::System(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidInput, other),
        }
    }
}

/// Reads a regular file of at most [`LARGEST_FILE`] bytes that holds text. Nothing is waited for but the disk.
///
/// # Errors
/// [`FileError`] with the reason, without the name.
pub fn read_user_text(path: impl AsRef<Path>) -> Result<String, FileError> {
    String::from_utf8(read_user_file(path, LARGEST_FILE)?).map_err(|_| FileError::NotText)
}

/// Reads a regular file of at most `limit` bytes. Nothing is waited for but the disk.
///
/// # Errors
/// [`FileError`] with the reason, without the name.
pub fn read_user_file(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open_user_file(path)?;
    if file.metadata()?.len() > limit {
        return Err(FileError::Large(limit));
    }
    read_up_to(file, limit)
}

/// Opens a regular file of any size, for callers that read it piece by piece. It waits for nothing but the disk.
///
/// # Errors
/// [`FileError`] with the reason, without the name.
pub fn open_user_file(path: impl AsRef<Path>) -> Result<File, FileError> {
    let path = path.as_ref();
    // To open a device may do something, and to open a socket is an error without a reason.
    check_kind(metadata(path)?.file_type())?;
    // It may be another one by now: then a FIFO without a writer is opened at once, and is seen here.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    check_kind(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a stream that is meant to be one, such as standard input, to its end, up to [`LARGEST_FILE`] bytes of text.
///
/// # Errors
/// [`FileError`] with the reason.
pub fn read_user_stream(from: impl Read) -> Result<String, FileError> {
    String::from_utf8(read_up_to(from, LARGEST_FILE)?).map_err(|_| FileError::NotText)
}

fn read_up_to<R: Read>(from: R, limit: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(FileError::Large(limit)) } else { Ok(bytes) }
}

fn check_kind(kind: FileType) -> Result<(), FileError> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "no file",
    };
    Err(FileError::Irregular(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = std::env::temp_dir().join(format!("herringbone-user-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [text, bytes, large, pipe] = ["text", "bytes", "large", "pipe"].map(|name| folder.join(name));
        fs::write(&text, "numbers").unwrap();
        fs::write(&bytes, [0xff, 0xfe]).unwrap();
        // A file with a hole takes up no disk.
        File::create(&large).unwrap().set_len(LARGEST_FILE + (1 << 20)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(read_user_text(&text).unwrap(), "numbers");
        let said = |path: &Path| read_user_text(path).unwrap_err().to_string();
        assert!(said(&pipe).starts_with("it is a pipe, and only regular files"), "{}", said(&pipe));
        assert!(said(&folder).starts_with("it is a folder"));
        assert!(said(Path::new("/dev/zero")).starts_with("it is a device"));
        assert!(said(&large).starts_with("it has more than 64 MiB"));
        assert_eq!(said(&bytes), "it is not text in UTF-8");
        assert!(said(&folder.join("missing")).contains("No such file"));
        assert!(matches!(read_user_file(&text, 3), Err(FileError::Large(3))));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_of_the_kernel_have_no_size_and_are_read() {
        assert!(read_user_text("/proc/self/status").unwrap().contains("Pid:"));
    }

    #[test]
    fn a_stream_has_a_bound_too() {
        assert_eq!(read_user_stream(&b"links"[..]).unwrap(), "links");
        assert!(matches!(read_user_stream(io::repeat(b'0')), Err(FileError::Large(LARGEST_FILE))));
    }
}
