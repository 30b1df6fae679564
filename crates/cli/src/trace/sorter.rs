//! Sorts more events than fit in memory.
//!
//! Knuth, "The Art of Computer Programming", volume 3, section 5.4: sorted runs go to files, and are merged.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fmt,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    path::PathBuf,
};

/// By what events are sorted: what begins earlier comes first, then what ends later, then what came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    at: i64,
    duration: Reverse<i64>,
    number: u64,
}

/// Takes events in any order, and gives them in the order of their times.
#[derive(Debug)]
pub(super) struct EventSorter {
    /// The file in whose folder runs are kept.
    beside: PathBuf,
    /// How many bytes of events are kept in memory.
    room: usize,
    keys: Vec<SortedEvent>,
    text: String,
    runs: Vec<File>,
    events: u64,
}

/// An event in memory: where its text is.
#[derive(Clone, Copy, Debug)]
struct SortedEvent {
    key: SortKey,
    start: usize,
    length: usize,
}

/// The approximate memory of an event in addition to its text.
const OVERHEAD: usize = size_of::<SortedEvent>();

impl EventSorter {
    pub(super) fn new(beside: PathBuf, room: usize) -> Self {
        Self { beside, room, keys: Vec::new(), text: String::new(), runs: Vec::new(), events: 0 }
    }

    /// Takes an event; `write` appends its text.
    pub(super) fn add(
        &mut self,
        at: i64,
        duration: i64,
        write: impl FnOnce(&mut String) -> fmt::Result,
    ) -> io::Result<()> {
        let start = self.text.len();
        write(&mut self.text).map_err(io::Error::other)?;
        let key = SortKey { at, duration: Reverse(duration), number: self.events };
        self.keys.push(SortedEvent { key, start, length: self.text.len() - start });
        self.events += 1;
        match self.text.len() + OVERHEAD * self.keys.len() < self.room {
            true => Ok(()),
            false => self.spill(),
        }
    }

    fn sorted(&mut self) -> impl Iterator<Item = (SortKey, &str)> {
        self.keys.sort_unstable_by_key(|event| event.key);
        self.keys.iter().map(|event| (event.key, &self.text[event.start..event.start + event.length]))
    }

    /// Brings all that is in memory to a file, which has no name: it is gone with this process.
    fn spill(&mut self) -> io::Result<()> {
        let mut path = self.beside.clone().into_os_string();
        path.push(format!(".{}.part", self.runs.len()));
        let path = PathBuf::from(path);
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        let mut out = BufWriter::new(&mut file);
        for (key, text) in self.sorted() {
            out.write_all(&key.at.to_le_bytes())?;
            out.write_all(&key.duration.0.to_le_bytes())?;
            out.write_all(&key.number.to_le_bytes())?;
            out.write_all(&(text.len() as u64).to_le_bytes())?;
            out.write_all(text.as_bytes())?;
        }
        out.flush()?;
        drop(out);
        file.rewind()?;
        self.runs.push(file);
        self.keys.clear();
        self.text.clear();
        Ok(())
    }

    /// Gives all events in order.
    pub(super) fn finish(mut self, mut take: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        if self.runs.is_empty() {
            return self.sorted().try_for_each(|(_, text)| take(text));
        }
        self.spill()?;
        let mut runs: Vec<SortedRun> = self.runs.drain(..).map(SortedRun::new).collect();
        let mut heads = BinaryHeap::new();
        for (index, run) in runs.iter_mut().enumerate() {
            heads.extend(run.next()?.map(|key| Reverse((key, index))));
        }
        while let Some(Reverse((_, index))) = heads.pop() {
            take(&runs[index].text)?;
            heads.extend(runs[index].next()?.map(|key| Reverse((key, index))));
        }
        Ok(())
    }
}

/// A file of sorted events.
#[derive(Debug)]
struct SortedRun {
    input: BufReader<File>,
    text: String,
}

impl SortedRun {
    fn new(file: File) -> Self {
        Self { input: BufReader::new(file), text: String::new() }
    }

    fn word(&mut self) -> io::Result<[u8; 8]> {
        let mut word = [0; 8];
        self.input.read_exact(&mut word)?;
        Ok(word)
    }

    /// The key of the next event, whose text is there then.
    fn next(&mut self) -> io::Result<Option<SortKey>> {
        use std::io::BufRead;
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let at = i64::from_le_bytes(self.word()?);
        let duration = Reverse(i64::from_le_bytes(self.word()?));
        let number = u64::from_le_bytes(self.word()?);
        let length = u64::from_le_bytes(self.word()?);
        self.text.clear();
        (&mut self.input).take(length).read_to_string(&mut self.text)?;
        Ok(Some(SortKey { at, duration, number }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env::temp_dir;

    fn sorted(room: usize) -> Vec<String> {
        let beside = temp_dir().join(format!("herringbone-sorter-{}-{room}", std::process::id()));
        let mut sorter = EventSorter::new(beside.clone(), room);
        for number in 0..1000_i64 {
            let at = number * 7919 % 101;
            let duration = number % 3;
            sorter
                .add(at, duration, |text| {
                    text.push_str(&format!("{at} {} {number}", 2 - duration));
                    Ok(())
                })
                .unwrap();
        }
        let mut found = Vec::new();
        sorter
            .finish(|text| {
                found.push(text.to_owned());
                Ok(())
            })
            .unwrap();
        assert!(!temp_dir().join(format!("{}.0.part", beside.display())).exists());
        found
    }

    #[test]
    fn events_are_sorted_in_memory_and_in_files_alike() {
        let found = sorted(1 << 20);
        let keys: Vec<Vec<i64>> =
            found.iter().map(|text| text.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
        assert!(keys.is_sorted() && keys.len() == 1000);
        assert_eq!(sorted(4096), found);
    }
}
