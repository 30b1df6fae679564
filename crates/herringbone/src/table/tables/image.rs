//! Images of tables: out of a table record by record, and into the tables of another server or of a later one.
//!
//! A **live** image is sent to a copy while the table continues to change. The copy is the same bit for bit at the end
//! if it gets the records, and everything that changes the table, in one order. First come the [records of the
//! head](super::walk::ImageCursor::is_in_head) without anything between them, then blocks of rows. Between these blocks
//! each [operation](crate::core::table::TableOperation) comes at the time of its execution here.

use super::{
    Change, ServedRequest, TableRange, Tables,
    walk::{FrozenTable, ImageCursor, TableLoader},
};
use crate::{
    core::table::{ImageHead, ImageRecord, NumberedPush, RowKeys, TableError},
    table::kept_push::{KeptPayload, KeptPush},
};
use std::sync::Arc;

#[cfg(test)]
mod tests;

impl Tables {
    /// Begins a live image of a table. It shares the pushes that the table keeps, and holds them until they are sent.
    pub(in crate::table) fn image(&self, number: u32) -> Result<ImageCursor, TableError> {
        let table = self.tables.get(&number).ok_or(TableError::Unknown)?;
        Ok(ImageCursor::new(&self.image_head(number, table)?, &table.state, true))
    }

    /// The next record of a live image, if one is left.
    pub(in crate::table) fn image_step(
        &self,
        number: u32,
        cursor: &mut ImageCursor,
    ) -> Result<Option<Vec<u8>>, TableError> {
        let table = self.tables.get(&number).ok_or(TableError::Unknown)?;
        cursor.next(table.rows.placed())
    }

    /// The first table after a number, to go through all of them while they change.
    pub(in crate::table) fn table_after(&self, number: Option<u32>) -> Option<u32> {
        let from = number.map_or(0, |number| number + 1);
        self.tables.range(from..).next().map(|(number, _)| *number)
    }

    /// What there is to a range beside its tables: the last piece of its image.
    pub(in crate::table) fn last_record(&self) -> Vec<u8> {
        let changes = self.changes.iter().flat_map(|(worker, Change { life, number })| {
            [&worker.to_le_bytes()[..], &life.to_le_bytes(), &number.to_le_bytes()].concat()
        });
        self.next.to_le_bytes().into_iter().chain(changes).collect()
    }

    /// Whether a table is here: somebody may have dropped it while its image comes.
    pub(in crate::table) fn is_here(&self, number: u32) -> bool {
        self.tables.contains_key(&number)
    }

    /// Images come of all tables.
    pub(in crate::table) fn begin_loading(&mut self) {
        self.is_loading = true;
    }

    /// All have come, and this is the last piece.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub(in crate::table) fn end_loading(&mut self, last: &[u8]) -> Result<(), TableError> {
        let wrong = || TableError::Malformed("the last piece of an image".into());
        let (next, changes) = last.split_first_chunk().ok_or_else(wrong)?;
        let (changes, rest) = changes.as_chunks::<20>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        self.next = self.next.max(u32::from_le_bytes(*next));
        for change in changes {
            let [worker, life_low, life_high, low, high] = std::array::from_fn(|at| {
                u32::from_le_bytes(std::array::from_fn(|byte| change[at * 4 + byte]))
            });
            let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
            self.changes.insert(worker, Change { life: wide(life_low, life_high), number: wide(low, high) });
        }
        self.is_loading = false;
        Ok(())
    }

    /// A table as it is now, which another thread may walk. Pushes of steps that are not over are not in it.
    pub(in crate::table) fn freeze(&self, number: u32) -> Result<FrozenTable, TableError> {
        let table = self.tables.get(&number).ok_or(TableError::Unknown)?;
        let head = self.image_head(number, table)?;
        Ok(FrozenTable {
            cursor: ImageCursor::new(&head, &table.state, false),
            rows: table.rows.freeze(),
            head,
        })
    }

    /// The number that the next table gets; this one if there was none.
    pub(in crate::table) fn next_number(&self, first: u32) -> u32 {
        if self.next == 0 { first } else { self.next }
    }

    fn image_head(&self, number: u32, table: &TableRange) -> Result<ImageHead, TableError> {
        let name = self.numbers.iter().find(|(_, known)| **known == number).map(|(name, _)| name.clone());
        Ok(ImageHead {
            name: name.ok_or(TableError::Unknown)?,
            number,
            spec: table.spec.clone(),
            optimizer: table.optimizer,
            range: self.range,
            ranges: table.ranges,
            version: table.state.version(),
            began_at: table.state.began_at(),
            birth: table.birth,
            not_numbers: table.not_numbers,
        })
    }
}

impl TableLoader {
    /// Makes the table of an image's first record, without rows, under the number that the record says.
    ///
    /// # Errors
    /// [`TableError::Malformed`]; [`TableError::Full`] and others as if a worker made it. There is no such table then.
    pub(in crate::table) fn begin(tables: &mut Tables, record: &[u8]) -> Result<Self, TableError> {
        let (ImageRecord::Head(head), _) = ImageRecord::decode(record)? else {
            return Err(TableError::Malformed("an image that does not begin with a head".into()));
        };
        let wrong = |what: &str| Err(TableError::Malformed(what.into()));
        head.optimizer.check().map_err(|wrong| TableError::Unusable(wrong.0))?;
        if !head.spec.optimizer.is_same_but_for_numbers(&head.optimizer) {
            return wrong("an image with another optimizer than its table has");
        }
        if tables.numbers.contains_key(&head.name) || tables.tables.contains_key(&head.number) {
            return wrong("an image of a table that is here already");
        }
        let after = tables.next.max(head.number.saturating_add(1));
        let before = std::mem::replace(&mut tables.next, head.number);
        let made = tables.make(&head.name, &head.spec, head.ranges);
        tables.next = if made.is_ok() { after } else { before };
        let mut loader =
            Self { name: head.name.clone(), number: made?, all_keys: 0..head.spec.rows, records: 1, rows: 0 };
        let filled = loader.fill(tables, &head);
        loader.whole_or_none(tables, filled)?;
        Ok(loader)
    }

    fn fill(&mut self, tables: &mut Tables, head: &ImageHead) -> Result<(), TableError> {
        let table = tables.tables.get_mut(&self.number).ok_or(TableError::Unknown)?;
        table.optimizer = head.optimizer;
        table.rows.tune(head.optimizer);
        (table.not_numbers, table.birth) = (head.not_numbers, head.birth);
        table.rows.begin_loading();
        table.state.restore(head.version, head.began_at)
    }

    /// Takes the next record. Returns whether it was the last one: then the table is as the one that the image is of.
    ///
    /// # Errors
    /// [`TableError::Malformed`], [`TableError::Full`]; [`TableError::Unknown`] if somebody has dropped the table. It is gone then.
    pub(in crate::table) fn apply(&mut self, tables: &mut Tables, record: &[u8]) -> Result<bool, TableError> {
        let applied = self.take_in(tables, record);
        self.whole_or_none(tables, applied)
    }

    fn take_in(&mut self, tables: &mut Tables, record: &[u8]) -> Result<bool, TableError> {
        let (record, bytes) = ImageRecord::decode(record)?;
        let (memory, is_copy) = (tables.memory.clone(), tables.is_copy);
        let fits = |cost| if is_copy { Ok(cost) } else { memory.check(cost).map(|()| cost) };
        let table = tables.tables.get_mut(&self.number).ok_or(TableError::Unknown)?;
        let cost = match record {
            ImageRecord::Head(_) => return Err(TableError::Malformed("a second head of an image".into())),
            ImageRecord::Clocks(clocks) => {
                table.state.restore_clocks(clocks)?;
                0
            }
            ImageRecord::Kept { step, worker, number, keys } => {
                // Rows that it makes cost nothing before its step has ended.
                let cost = fits(bytes.len() as u64)?;
                let payload = KeptPayload { bytes: Arc::new(bytes.to_vec()), values_at: 0 };
                let push = KeptPush { keys, payload, reserved: cost };
                load_kept(table, step, worker, NumberedPush { number, push })?;
                cost
            }
            ImageRecord::Rows { keys } => {
                let cost = fits(self.cost(table, &keys)?)?;
                table.rows.load(&keys, bytes)?;
                self.rows += keys.len() as u64;
                cost
            }
            ImageRecord::End { records, rows } if (records, rows) != (self.records, self.rows) => {
                return Err(TableError::Malformed("an image that lacks records".into()));
            }
            ImageRecord::End { .. } => return table.rows.end_loading().map(|()| true),
        };
        table.used += cost;
        tables.memory.take(cost);
        self.records += 1;
        Ok(false)
    }

    /// What the rows of a block take up.
    fn cost(&self, table: &TableRange, keys: &RowKeys) -> Result<u64, TableError> {
        let are_right = match keys {
            RowKeys::Run { .. } => keys.are_right(&self.all_keys),
            RowKeys::Listed(listed) => listed.iter().all(|key| self.all_keys.contains(key)),
        };
        if !are_right {
            return Err(TableError::Malformed("rows of keys that the table does not have".into()));
        }
        Ok(match keys {
            RowKeys::Listed(listed) if table.spec.sparse => {
                listed.iter().filter(|key| table.keys.contains(key)).count() as u64 * table.rows.row_cost()
            }
            _ => 0,
        })
    }

    /// What is refused leaves nothing behind.
    fn whole_or_none<T>(&self, tables: &mut Tables, done: Result<T, TableError>) -> Result<T, TableError> {
        if done.is_err() {
            self.abandon(tables);
        }
        done
    }

    /// Drops the table before all its records have come.
    pub(in crate::table) fn abandon(&self, tables: &mut Tables) {
        if tables.numbers.get(&self.name) == Some(&self.number) {
            // The table is there, and no pull waits for one that is being loaded.
            let _dropped = tables.drop_table(&self.name, &mut ServedRequest::default());
        }
    }
}

/// Keeps a push for the end of its step.
fn load_kept(
    table: &mut TableRange,
    step: u64,
    worker: u32,
    kept: NumberedPush<KeptPush>,
) -> Result<(), TableError> {
    let push = &kept.push;
    table.check_keys(&push.keys)?;
    if push.keys.len().checked_mul(table.spec.row_bytes()) != Some(push.values().len()) {
        return Err(TableError::Malformed("a kept push whose rows have another width or type".into()));
    }
    table.state.restore_kept(step, worker, kept)
}
