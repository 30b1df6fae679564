//! What has come for an operation that this rank has not issued.

use super::{Engine, fences::left_because};
use crate::{Error, ErrorKind, Result, core::session::membership::MemberId};

impl Engine {
    /// Whether another member has sent something for the operation that this rank issues next in a group. Asks for links to the
    /// other members, so that they can.
    ///
    /// # Errors
    /// If the group is closed, or another member can send nothing more.
    pub(crate) fn has_arrived(&mut self, number: u32) -> Result<bool> {
        let Self { links, groups, backlog, out, .. } = self;
        let group = groups.get(number).filter(|group| !group.ending.is_dropped);
        let group = group.ok_or_else(|| Error::new(ErrorKind::Closed))?;
        if !backlog.early.of(number, group.member.next()).is_empty() {
            return Ok(true);
        }
        let lost = group.lost.as_ref().or(group.doom.as_ref().map(|doom| &doom.error));
        if let Some(error) = lost {
            return Err(error.clone());
        }
        let me = links.me;
        let others: Vec<MemberId> = group.settings.seats.iter().copied().filter(|seat| *seat != me).collect();
        if let Some(away) = others.iter().find(|other| links.endpoints[**other].is_away()) {
            return Err(left_because(*away, false, links));
        }
        // Reducers have no part in what one member sends another.
        let _are_up = links.are_up(&others, out);
        Ok(false)
    }
}
