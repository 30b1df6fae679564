//! What has come for an operation that this rank has not issued.

use super::{backlog::Backlog, fences::left_because, groups::Groups, links::Links, outbox::Outbox};
use crate::{Error, ErrorKind, Result, core::session::membership::MemberId};

impl Backlog {
    /// Whether another member has sent something for the operation that this rank issues next in a group. Asks for links to the
    /// other members, so that they can.
    pub(super) fn has_arrived(
        &self,
        number: u32,
        groups: &Groups,
        (links, out): (&mut Links, &mut Outbox),
    ) -> Result<bool> {
        let group = groups.get(number).filter(|group| !group.ending.is_dropped);
        let group = group.ok_or_else(|| Error::new(ErrorKind::Closed))?;
        // If the next operation failed where it was issued, only later ones come; issuing it tells this rank of that.
        if self.early.has_from(number, group.member.next()) {
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
