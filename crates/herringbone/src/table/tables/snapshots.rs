//! Tables that are written to disk as they are at a step, and made as they were.

use super::{ReadySave, ServedRequest, TableCaller, Tables, WantedRestore, WantedSave, walk::TableLoader};
use crate::core::table::{TableAnswer, TableError};

impl Tables {
    pub(super) fn want_save(
        &mut self,
        number: u32,
        caller: &TableCaller,
        save: WantedSave,
    ) -> Result<(), TableError> {
        let table = self.tables.get_mut(&number).ok_or(TableError::Unknown)?;
        table.state.life(caller.worker).ok_or(TableError::Unknown)?;
        // Of a sync table all ranges are written as they are at the same step.
        if table.spec.consistency.is_sync() && table.state.version() > save.step {
            return Err(TableError::Passed);
        }
        table.saves.push(save);
        Ok(())
    }

    /// Freezes a table for the snapshots whose step has come.
    pub(super) fn save_ready(&mut self, number: u32, served: &mut ServedRequest) {
        let Some(table) = self.tables.get_mut(&number) else { return };
        let (version, has_clock) = (table.state.version(), table.spec.consistency.bound().is_some());
        let ready: Vec<WantedSave> =
            table.saves.extract_if(.., |save| !has_clock || version >= save.step).collect();
        for WantedSave { connection, number: request, id, step } in ready {
            if let Ok(frozen) = self.freeze(number) {
                served.saves.push(ReadySave { connection, number: request, id, step, frozen });
            }
        }
    }

    /// Takes a record of a table that is restored. Returns whether it was the last.
    pub(in crate::table) fn load(&mut self, record: &[u8]) -> Result<bool, TableError> {
        let loader = match self.restored.take() {
            None => TableLoader::begin(self, record)?,
            Some(mut loader) => match loader.apply(self, record)? {
                true => return Ok(true),
                false => loader,
            },
        };
        self.restored = Some(loader);
        Ok(false)
    }

    /// No more records of it come.
    pub(in crate::table) fn unload(&mut self) {
        if let Some(loader) = self.restored.take() {
            loader.abandon(self);
        }
    }

    pub(super) fn want_restore(
        &self,
        wanted: WantedRestore,
        served: &mut ServedRequest,
    ) -> Result<Option<TableAnswer>, TableError> {
        let WantedRestore { name, spec, ranges, .. } = &wanted;
        spec.check(name).map_err(|wrong| TableError::Unusable(wrong.0))?;
        if self.range >= *ranges {
            return Err(TableError::Malformed("a range that there is not".into()));
        }
        if self.restored.is_some() {
            return Err(TableError::Restoring);
        }
        if self.numbers.contains_key(name) {
            return Ok(Some(TableAnswer::Done));
        }
        served.restores.push(wanted);
        Ok(None)
    }

    /// Whether a table is being restored, or this one if it is given.
    pub(in crate::table) fn is_restoring(&self, table: Option<u32>) -> bool {
        self.restored.as_ref().is_some_and(|loader| table.is_none_or(|table| table == loader.number))
    }
}
