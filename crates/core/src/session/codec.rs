//! The fields of messages: little-endian numbers, texts and lists with their lengths in front.
//!
//! Every length is bounded here, and nothing is reserved because of one: lists grow with the arrived bytes.

use crate::{
    group::{FoldOrder, Rank},
    session::is_unseen,
    topology::{LinkMatrix, Ports, RoundTrips, Wiring},
    wire::Fingerprint,
};
use alloc::{string::String, sync::Arc, vec::Vec};

/// The longest text in a message, in bytes.
pub(crate) const TEXT_BYTES: usize = 256;

/// The longest text of an algorithm, or of a rule that has one, in bytes: with a share for each of 4,096 owners.
pub(crate) const ALGORITHM_BYTES: usize = 16 << 10;

/// The largest matrix of links in a message, in bytes: of 64 ranks.
const LINKS_BYTES: usize = 50 << 10;

/// The most bytes of ports in a message: both rates of each rank, and the time of an empty message.
const PORTS_BYTES: usize = Ports::MOST_BYTES;

/// The longest list in a message.
pub(crate) const LIST_ITEMS: usize = 65_536;

/// A message that does not fit its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is too long to be sent: at most {limit} are allowed")]
pub struct TooLong {
    /// Which part of the message.
    pub field: &'static str,
    /// Its limit: bytes of a text or message, items of a list.
    pub limit: usize,
}

/// Bytes that make no message; says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Builds a message. A field over its bound is remembered and reported by [`finish`](Self::finish).
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    too_long: Option<TooLong>,
}

impl Writer {
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, field: &'static str, value: &str) {
        self.text_to(field, TEXT_BYTES, value);
    }

    /// As [`text`](Self::text), of at most so many bytes.
    pub(crate) fn text_to(&mut self, field: &'static str, most: usize, value: &str) {
        if self.fits(field, value.len(), most) {
            self.u16(value.len() as u16);
            self.bytes(value.as_bytes());
        }
    }

    /// A text for people: what is over the bound is left out, and characters that nobody sees are spaces.
    pub(crate) fn cut_text(&mut self, value: &str) {
        self.cut_text_to(TEXT_BYTES, value);
    }

    /// As [`cut_text`](Self::cut_text), to fewer bytes.
    pub(crate) fn cut_text_to(&mut self, most: usize, value: &str) {
        let value: String = value.chars().map(|char| if is_unseen(char) { ' ' } else { char }).collect();
        let mut end = value.len().min(most);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.text("a text", &value[..end]);
    }

    pub(crate) fn list<T>(&mut self, field: &'static str, items: &[T], write: impl Fn(&mut Self, &T)) {
        if self.fits(field, items.len(), LIST_ITEMS) {
            self.u32(items.len() as u32);
            items.iter().for_each(|item| write(self, item));
        }
    }

    /// A part with its length in front, of at most `limit` bytes.
    pub(crate) fn part(&mut self, field: &'static str, limit: usize, write: impl FnOnce(&mut Self)) {
        let mut part = Self::default();
        write(&mut part);
        self.too_long = self.too_long.or(part.too_long);
        if self.fits(field, part.bytes.len(), limit) {
            self.u32(part.bytes.len() as u32);
            self.bytes(&part.bytes);
        }
    }

    /// As [`list`](Self::list), of numbers of 64 bits.
    pub(crate) fn u64s(&mut self, field: &'static str, numbers: &[u64]) {
        if self.fits(field, numbers.len(), LIST_ITEMS) {
            self.bytes.reserve(size_of::<u32>() + size_of_val(numbers));
            self.u32(numbers.len() as u32);
            numbers.iter().for_each(|number| self.u64(*number));
        }
    }

    pub(crate) fn option<T>(&mut self, value: Option<&T>, write: impl Fn(&mut Self, &T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn ranks(&mut self, ranks: &[Rank]) {
        self.list("a list of ranks", ranks, |to, rank| to.u32(*rank));
    }

    pub(crate) fn wiring(&mut self, wiring: &Wiring) {
        let Wiring { links, ports, round_trips } = wiring;
        self.option(links.as_ref(), |to, links| {
            to.part("the links between ranks", LINKS_BYTES, |to| to.bytes(&links.to_bytes()));
        });
        self.option(ports.as_ref(), |to, ports| {
            to.part("the ports of hosts", PORTS_BYTES, |to| to.bytes(&ports.to_bytes()));
        });
        self.list("the round trips of ranks", round_trips.numbers(), |to, time| to.u32(*time));
    }

    pub(crate) fn fingerprint(&mut self, value: &Fingerprint) {
        self.bytes(&value.to_bytes());
    }

    /// The bytes, none of whose fields can be over its bound.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes, at most `limit` of them.
    pub(crate) fn finish(mut self, limit: usize) -> Result<Vec<u8>, TooLong> {
        self.fits("a message", self.bytes.len(), limit);
        self.too_long.map_or(Ok(self.bytes), Err)
    }

    fn fits(&mut self, field: &'static str, length: usize, limit: usize) -> bool {
        if length > limit && self.too_long.is_none() {
            self.too_long = Some(TooLong { field, limit });
        }
        length <= limit
    }
}

/// Takes a message apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (value, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*value)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text without control characters, so that it can be shown to people wherever it comes from.
    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        self.text_to(TEXT_BYTES)
    }

    /// As [`text`](Self::text), of at most so many bytes.
    pub(crate) fn text_to(&mut self, most: usize) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(Malformed("a text is too long"));
        }
        let text = core::str::from_utf8(self.bytes(length)?).map_err(|_| Malformed("a text is not UTF-8"))?;
        if text.chars().any(char::is_control) {
            return Err(Malformed("a text has control characters"));
        }
        Ok(text.into())
    }

    pub(crate) fn list<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.u32()? as usize;
        if length > LIST_ITEMS {
            return Err(Malformed("a list is too long"));
        }
        // No item is shorter than a byte.
        if length > self.0.len() {
            return Err(Malformed("it ends too early"));
        }
        (0..length).map(|_| read(self)).collect()
    }

    /// As [`list`](Self::list), of numbers of 64 bits.
    pub(crate) fn u64s(&mut self) -> Result<Arc<[u64]>, Malformed> {
        let length = self.u32()? as usize;
        if length > LIST_ITEMS {
            return Err(Malformed("a list is too long"));
        }
        let numbers = self.bytes(length * size_of::<u64>())?.as_chunks().0;
        Ok(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }

    /// A part of at most `limit` bytes, all of which `read` takes.
    pub(crate) fn part<T>(
        &mut self,
        limit: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        let length = self.u32()? as usize;
        if length > limit {
            return Err(Malformed("a part is too long"));
        }
        let mut part = Reader(self.bytes(length)?);
        let value = read(&mut part)?;
        part.finish()?;
        Ok(value)
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Malformed("an option is neither there nor not")),
        }
    }

    pub(crate) fn ranks(&mut self) -> Result<Vec<Rank>, Malformed> {
        self.list(Self::u32)
    }

    pub(crate) fn wiring(&mut self) -> Result<Wiring, Malformed> {
        let links = self.option(|from| {
            from.part(LINKS_BYTES, |from| {
                let bytes = core::mem::take(&mut from.0);
                LinkMatrix::from_bytes(bytes).ok_or(Malformed("links that are no matrix"))
            })
        })?;
        let ports = self.option(|from| {
            from.part(PORTS_BYTES, |from| {
                let bytes = core::mem::take(&mut from.0);
                Ports::from_bytes(bytes).ok_or(Malformed("ports that are none"))
            })
        })?;
        let round_trips = RoundTrips::of_numbers(self.list(Self::u32)?)
            .ok_or(Malformed("a round trip that is too long"))?;
        Ok(Wiring { links, ports, round_trips })
    }

    pub(crate) fn fold_order(&mut self) -> Result<FoldOrder, Malformed> {
        FoldOrder::from_code(self.u8()?).ok_or(Malformed("a fold order that is unknown"))
    }

    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint, Malformed> {
        self.array().map(|bytes| Fingerprint::from_bytes(&bytes))
    }

    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is longer than it should be")) }
    }
}
