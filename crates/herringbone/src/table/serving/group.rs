//! A server in a group of servers that have copies of each other's ranges: it does the tasks of its [`TableNode`].

use super::state::{Away, HeldAnswer, ImageJob, Serving, ServingGroup, Shard};
use crate::{
    core::table::{
        RequestAddress, TableAnswer, TableError, TableOperation,
        replication::{NodeOutput, PeerMessage, ServerLife},
    },
    table::{link::MessageLink, shared::lock, tables::walk::TableLoader},
    transport::Broken,
};
use std::time::{Duration, Instant};

/// After this many bytes in line to a server no more of an image is.
const IMAGE_BYTES: usize = 4 << 20;
/// For how long the last words to a server may take.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What comes after a piece of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageStep {
    More,
    /// The next table is being restored.
    Later,
    /// It was the last one, or no more are wanted.
    Over,
}

impl Serving {
    /// Whether this server may execute requests of a range.
    pub(super) fn executes(&self, range: u32) -> bool {
        self.group.as_ref().is_none_or(|group| group.node.executes(range))
    }

    /// What a worker is told whose request is not executed here.
    pub(super) fn elsewhere(&mut self, connection: u64, address: RequestAddress) -> Option<TableAnswer> {
        let RequestAddress { range, is_first } = address;
        let group = self.group.as_ref()?;
        let bounced = &mut self.connections.get_mut(&connection)?.bounced;
        if is_first {
            bounced.remove(&range);
        }
        if group.node.executes(range) && !bounced.contains(&range) {
            return None;
        }
        bounced.insert(range);
        Some(self.locate(range))
    }

    /// Who has a range, as far as this server knows.
    pub(super) fn locate(&self, range: u32) -> TableAnswer {
        let node = self.group.as_ref().map(|group| &group.node);
        let owner = node.filter(|node| node.is_active()).and_then(|node| node.owner(range));
        TableAnswer::Elsewhere { owner, is_lost: node.is_some_and(|node| node.is_lost(range)) }
    }

    /// Copies execute what was executed here.
    pub(super) fn tell_copies(&mut self, range: u32, operations: Vec<TableOperation>) {
        let Some(group) = self.group.as_mut().filter(|_| !operations.is_empty()) else { return };
        for operation in operations {
            group.node.append(range, operation.encode());
        }
        self.carry_out();
    }

    /// A connection with another server has come about. Of two processes in one place the one that is well stays.
    pub(super) fn greet_server(&mut self, number: u64, peer: ServerLife) {
        let Some(group) = &mut self.group else { return };
        let now = group.now();
        if !group.node.linked(peer, now) {
            if group.sent_away.insert(peer) {
                let address = &group.servers[peer.server as usize];
                let what = "two processes are servers of one place: the one that came later is sent away";
                crate::log::warn("tables", format_args!("the server at {address}: {what}"));
            }
            self.connections.remove(&number).into_iter().for_each(|connection| say_goodbye(connection.link));
            return;
        }
        lock(&self.shared.linked).insert(peer.server);
        if let Some(before) = group.connections.insert(peer.server, number) {
            // If its process lives it is not to take this for the end of this one.
            self.connections.remove(&before).into_iter().for_each(|connection| say_goodbye(connection.link));
        }
        self.carry_out();
    }

    /// A connection with another server has ended.
    pub(super) fn miss_server(&mut self, number: u64, peer: ServerLife, reason: &Broken, link: MessageLink) {
        let Some(group) = &mut self.group else { return };
        if group.connections.get(&peer.server) != Some(&number) {
            return;
        }
        group.connections.remove(&peer.server);
        lock(&self.shared.linked).remove(&peer.server);
        let by_other_side = matches!(reason, Broken::Closed);
        let address = &group.servers[peer.server as usize];
        crate::log::note("tables", format_args!("lost the server at {address}: {reason}"));
        if !by_other_side {
            // This process lives: the other one is not to take the end of the connection for its death.
            say_goodbye(link);
        }
        group.node.unlinked(peer, by_other_side, group.now());
        self.carry_out();
    }

    /// Words from another server.
    pub(super) fn hear(&mut self, number: u64, peer: ServerLife, payload: &[u8]) {
        let Some(group) = &mut self.group else { return };
        if group.connections.get(&peer.server) != Some(&number) {
            return;
        }
        match PeerMessage::decode(payload) {
            Ok(message) => {
                let now = group.now();
                group.node.receive(peer.server, message, now);
                self.carry_out();
            }
            Err(_) => self.end(number, &Broken::Protocol("an invalid message between table servers")),
        }
    }

    /// Time passes.
    pub(super) fn look_after_group(&mut self) {
        let Some(group) = &mut self.group else { return };
        let now = group.now();
        group.node.tick(now);
        self.carry_out();
        self.send_images();
    }

    /// Does what the node says, in that order: what comes of one thing is done after all that was said before it.
    fn carry_out(&mut self) {
        if let Some(group) = &mut self.group
            && !std::mem::replace(&mut group.is_carrying_out, true)
        {
            while let Some(outputs) = self.group.as_mut().map(|group| group.node.outputs())
                && !outputs.is_empty()
            {
                outputs.into_iter().for_each(|output| self.obey(output));
            }
            if let Some(group) = &mut self.group {
                group.is_carrying_out = false;
            }
        }
    }

    fn obey(&mut self, output: NodeOutput) {
        match output {
            NodeOutput::Send { to, message } => self.say(to, &message),
            NodeOutput::Own { range } => self.own(range),
            NodeOutput::Disown { range } => self.disown(range),
            NodeOutput::Forget { range } => drop(self.shards.remove(&range)),
            NodeOutput::Execute { range, operation } => {
                let shard = self.copy_of(range);
                let executed = TableOperation::decode(&operation).and_then(|it| shard.tables.execute(it));
                self.complain(range, executed);
            }
            NodeOutput::Settled { range, sequence } => self.release(range, sequence),
            NodeOutput::SendImage(image) => {
                let Some(group) = &mut self.group else { return };
                group.images.retain(|job| (job.image.range, job.image.to) != (image.range, image.to));
                group.images.push(ImageJob { image, table: None, cursor: None });
            }
            NodeOutput::BeginImage { range } => {
                let mut shard = Shard::new(range, &self.memory, &self.optimizers, true);
                shard.tables.begin_loading();
                self.shards.insert(range, shard);
            }
            NodeOutput::Load { range, record } => {
                let loaded = self.copy_of(range).load(&record);
                self.complain(range, loaded);
            }
            NodeOutput::EndImage { range, record } => {
                let ended = self.copy_of(range).tables.end_loading(&record);
                self.complain(range, ended);
            }
            NodeOutput::Entered => self.report(),
            NodeOutput::LeftBehind => crate::log::note(
                "tables",
                "the other servers have continued without this one: it rejoins, and gets its ranges from them",
            ),
        }
    }

    fn copy_of(&mut self, range: u32) -> &mut Shard {
        self.shards.entry(range).or_insert_with(|| Shard::new(range, &self.memory, &self.optimizers, true))
    }

    /// What an owner has done can be done by its copies; if not, this is no copy, and people have to know.
    fn complain(&self, range: u32, done: Result<(), TableError>) {
        if let Err(error) = done {
            let what = "this is a bug: please report it, and restart this server, which then gets a new copy";
            crate::log::warn(
                "tables",
                format_args!("the copy of range {range} differs from its owner's: {error}; {what}"),
            );
        }
    }

    fn say(&mut self, to: u32, message: &PeerMessage) {
        let Some(group) = &self.group else { return };
        let number = group.connections.get(&to).copied();
        if let Some((number, connection)) =
            number.and_then(|number| Some((number, self.connections.get_mut(&number)?)))
        {
            connection.link.send(0, message.encode());
            self.to_write.insert(number);
        }
    }

    /// This server owns a range now.
    fn own(&mut self, range: u32) {
        let shard = self.copy_of(range);
        shard.tables.set_copy(false);
        let workers = shard.tables.workers();
        // Those that have no connection with this server get as much time as if it had just ended.
        let absent = workers.into_iter().filter(|who| !self.present.contains_key(who));
        let since = Instant::now();
        let away: Vec<Away> = absent.map(|(worker, life)| Away { since, worker, life }).collect();
        self.away.extend(away);
        // What another server was reading from its disk does not come to an end.
        if !self.disk.restores.iter().any(|job| job.range == range) {
            self.unload(range);
        }
    }

    /// Another server owns a range now: all that wait here ask there.
    fn disown(&mut self, range: u32) {
        let Some(shard) = self.shards.get_mut(&range) else { return };
        shard.tables.set_copy(true);
        let held = std::mem::take(&mut shard.held).into_iter().map(|held| (held.connection, held.number));
        let mut asked: Vec<(u64, u64)> = held.chain(shard.tables.take_waiting()).collect();
        for (number, connection) in &mut self.connections {
            let replies = std::mem::take(&mut connection.replies);
            let (gone, kept): (Vec<_>, Vec<_>) = replies.into_iter().partition(|(of, _)| *of == range);
            connection.replies = kept.into();
            asked.extend(gone.into_iter().map(|(_, reply)| (*number, reply.number)));
        }
        let restores = self.disk.restores.extract_if(.., |job| job.range == range);
        asked.extend(restores.map(|job| (job.connection, job.number)));
        for (connection, number) in asked {
            if let Some(there) = self.connections.get_mut(&connection) {
                there.bounced.insert(range);
                let answer = TableAnswer::Elsewhere { owner: None, is_lost: false };
                there.link.send(number, answer.encode());
                self.to_write.insert(connection);
            }
        }
    }

    /// Answers leave whose operations all copies have.
    fn release(&mut self, range: u32, sequence: u64) {
        let Some(shard) = self.shards.get_mut(&range) else { return };
        let ready = shard.held.partition_point(|held| held.sequence <= sequence);
        for HeldAnswer { connection, number, payload, .. } in shard.held.drain(..ready) {
            if let Some(there) = self.connections.get_mut(&connection) {
                there.link.send(number, payload);
                self.to_write.insert(connection);
            }
        }
    }

    /// Says who has which range.
    fn report(&self) {
        let Some(settled) = self.group.as_ref().and_then(|group| group.node.settled()) else { return };
        let servers: Vec<String> = settled.epoch.members.keys().map(u32::to_string).collect();
        let owners: Vec<String> = settled
            .tenures
            .iter()
            .map(|tenure| tenure.owner.map_or_else(|| "nobody".to_owned(), |owner| owner.to_string()))
            .collect();
        let (servers, owners) = (servers.join(", "), owners.join(", "));
        let id = settled.epoch.id;
        crate::log::note(
            "tables",
            format_args!("epoch {id}: servers {servers}; the ranges are owned by {owners}"),
        );
    }

    /// Whether images are to be sent for which there is room.
    pub(super) fn has_images(&self) -> bool {
        let Some(group) = &self.group else { return false };
        group.images.iter().any(|job| self.room_for_image(group, job))
    }

    fn room_for_image(&self, group: &ServingGroup, job: &ImageJob) -> bool {
        let link = group.connections.get(&job.image.to).and_then(|number| self.connections.get(number));
        link.is_none_or(|connection| connection.link.queued() < IMAGE_BYTES)
    }

    /// Sends pieces of images.
    fn send_images(&mut self) {
        let Some(group) = &mut self.group else { return };
        let jobs = std::mem::take(&mut group.images);
        for mut job in jobs {
            let mut step = ImageStep::More;
            while step == ImageStep::More
                && self.group.as_ref().is_some_and(|group| self.room_for_image(group, &job))
            {
                step = self.send_piece(&mut job);
            }
            if step != ImageStep::Over
                && let Some(group) = &mut self.group
            {
                group.images.push(job);
            }
        }
    }

    /// Sends the next piece of an image, or all that have to be together.
    fn send_piece(&mut self, job: &mut ImageJob) -> ImageStep {
        let (Some(group), Some(shard)) = (&mut self.group, self.shards.get(&job.image.range)) else {
            return ImageStep::Over;
        };
        let is_wanted = match &mut job.cursor {
            None => {
                let next = shard.tables.table_after(job.table);
                let Some(table) = next else {
                    group.node.send_image(job.image, shard.tables.last_record(), true);
                    self.carry_out();
                    return ImageStep::Over;
                };
                if shard.tables.is_restoring(next) {
                    return ImageStep::Later;
                }
                job.table = next;
                let mut cursor = shard.tables.image(table).ok();
                let mut is_wanted = true;
                while let Some(cursor) = cursor.as_mut().filter(|cursor| cursor.is_in_head())
                    && let Ok(Some(record)) = shard.tables.image_step(table, cursor)
                {
                    is_wanted &= group.node.send_image(job.image, record, false);
                }
                job.cursor = cursor;
                is_wanted
            }
            Some(cursor) => match shard.tables.image_step(job.table.unwrap_or_default(), cursor) {
                Ok(Some(record)) => group.node.send_image(job.image, record, false),
                // Its end was there, or somebody has dropped the table.
                Ok(None) | Err(_) => {
                    job.cursor = None;
                    true
                }
            },
        };
        self.carry_out();
        if is_wanted { ImageStep::More } else { ImageStep::Over }
    }
}

impl Shard {
    /// A piece of an image.
    fn load(&mut self, record: &[u8]) -> Result<(), TableError> {
        match self.loader.as_mut().filter(|loader| self.tables.is_here(loader.number)) {
            None => self.loader = Some(TableLoader::begin(&mut self.tables, record)?),
            Some(loader) => match loader.apply(&mut self.tables, record) {
                Ok(false) => {}
                Ok(true) => self.loader = None,
                Err(error) => {
                    self.loader = None;
                    return Err(error);
                }
            },
        }
        Ok(())
    }
}

/// Tells a server that this process lives, and goes on without it.
fn say_goodbye(mut link: MessageLink) {
    link.send(0, PeerMessage::GiveUp.encode());
    let began = Instant::now();
    while let Ok(false) = link.flush()
        && began.elapsed() < LAST_WORDS
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}
