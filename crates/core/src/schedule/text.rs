//! The text form of a schedule: to read, to compare with golden files, to write by hand. See [`Schedule::parse`].

use super::{Chunk, Cut, Form, Origin, Place, Program, ProgramBuilder, Schedule, Source, Step, Weights};
use alloc::{string::String, vec::Vec};
use core::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};

/// How many ranks a text may have: beyond this, nobody reads it.
const MAX_RANKS: u32 = 64;

/// How many chunks a text may have.
const MAX_CHUNKS: u32 = 1 << 16;

/// A text that is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} column {column}: expected {expected}, found {}", Found(found))]
pub struct TextError {
    line: usize,
    column: usize,
    found: String,
    expected: &'static str,
}

impl TextError {
    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The column, in characters from 1.
    pub fn column(&self) -> usize {
        self.column
    }
}

/// What stands where something else was expected; nothing at the end of a line or of the text.
struct Found<'a>(&'a str);

impl Display for Found<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the end") } else { write!(f, "{:?}", self.0) }
    }
}

impl Display for Form {
    /// `plain`, `acc`, `coded` or `result`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Plain => "plain",
            Form::Acc => "acc",
            Form::Coded => "coded",
            Form::CodedResult => "result",
        })
    }
}

impl Display for Cut {
    /// `even:4`, `blocks:4`, `given:4`, or with the weights of four chunks `weighted:16x3,1` or `weighted_blocks:16x3,1`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Even { chunks } => write!(f, "even:{chunks}"),
            Cut::Blocks { chunks } => write!(f, "blocks:{chunks}"),
            Cut::Weighted { weights, blocks: false } => write!(f, "weighted:{weights}"),
            Cut::Weighted { weights, blocks: true } => write!(f, "weighted_blocks:{weights}"),
            Cut::Given { parts } => write!(f, "given:{parts}"),
        }
    }
}

impl Display for Place {
    /// `u3`: the user's buffer at chunk 3; `s3`: slot 3.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::User(chunk) => write!(f, "u{chunk}"),
            Place::Slot(slot) => write!(f, "s{slot}"),
        }
    }
}

impl Display for Schedule {
    /// The text form. [`Schedule::parse`] reads it back for up to 64 ranks and 65,536 chunks.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "schedule workers={} reducers={} cut={}", self.workers, self.reducers, self.cut)?;
        writeln!(f, "{}", if self.side_by_side { " side_by_side" } else { "" })?;
        for rank in 0..self.ranks() {
            write!(f, "rank {rank}\n{}", self.program(rank))?;
        }
        Ok(())
    }
}

impl Display for Program {
    /// Its part of a schedule's text, without its rank.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.slots().is_empty() {
            write!(f, "  slots")?;
            self.slots().iter().try_for_each(|form| write!(f, " {form}"))?;
            writeln!(f)?;
        }
        for (at, step) in self.steps().iter().enumerate() {
            match *step {
                Step::Send { from, to } => {
                    write!(f, "  send {from} ->")?;
                    self.lanes(to).iter().try_for_each(|lane| write!(f, " {lane}"))?;
                }
                Step::Recv { lane, chunk, into } => write!(f, "  recv c{chunk} {into} <- {lane}")?,
                Step::Fold { chunk, from, into, finish } => {
                    let verb = if finish { "finish" } else { "fold" };
                    write!(f, "  {verb} c{chunk} {into} =")?;
                    self.sources(from).iter().try_for_each(|source| write_source(f, source))?;
                }
                Step::Copy { from, into } => write!(f, "  copy {into} = {from}")?,
                Step::Encode { from, into } => write!(f, "  encode {into} = {from}")?,
                Step::Decode { chunk, from, into } => {
                    write!(f, "  decode c{chunk} {into} =")?;
                    write_source(f, &Source { from, merges: 0 })?;
                }
            }
            if self.span(at) > 1 {
                write!(f, " x{}", self.span(at))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn write_source(f: &mut Formatter<'_>, source: &Source) -> fmt::Result {
    match source.from {
        Origin::At(place) => write!(f, " {place}")?,
        Origin::Head { lane, form } => write!(f, " @{lane}:{form}")?,
    }
    (0..source.merges).try_for_each(|_| f.write_str("+"))
}

impl FromStr for Schedule {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        Self::parse(text)
    }
}

impl Schedule {
    /// Reads the text form that [`Display`] writes, for up to 64 ranks and 65,536 chunks.
    ///
    /// ```text
    /// schedule workers=2 reducers=1 cut=even:1
    /// rank 0
    ///   send u0 -> 2
    ///   recv c0 u0 <- 2
    /// rank 1
    ///   send u0 -> 2
    ///   recv c0 u0 <- 2
    /// rank 2
    ///   slots plain
    ///   finish c0 s0 = @0:plain @1:plain+
    ///   send s0 -> 0 1
    /// ```
    ///
    /// `c0` is a chunk, `u0` the user's buffer at a chunk, `s0` a slot, `@1:acc` the next message from rank 1, and
    /// each `+` merges the two newest partial sums. `fold` leaves a partial sum, `finish` a result; `copy s0 = u0`
    /// copies, `encode s0 = u0` codes and `decode c0 u0 = s0` decodes a result. Behind a first line that ends in `side_by_side` a step
    /// that ends in `x4` stands for [four chunks](Program::span). Ranks come in order, all of them, and a rank's slots before its steps. A `#` starts a comment; blank
    /// lines and indentation mean nothing.
    ///
    /// Memory is bounded by the length of the text. Nothing is proved yet: see [`verify`](crate::verify::verify).
    ///
    /// # Errors
    /// With the line and the column of the first thing that cannot be read.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let mut lines = Lines::new(text);
        let mut head = lines.next("schedule workers=.. reducers=.. cut=..")?;
        head.keyword("schedule")?;
        let workers = head.setting("workers=")?.number(MAX_RANKS, "at most 64 ranks")?;
        let reducers = head.setting("reducers=")?.number(MAX_RANKS - workers, "at most 64 ranks")?;
        let cut = head.setting("cut=")?.cut()?;
        let side_by_side = head.keyword_if("side_by_side");
        head.end()?;
        let mut programs = Vec::new();
        for rank in 0..workers + reducers {
            let mut line = lines.next("another rank")?;
            line.keyword("rank")?;
            let token = line.token("a rank")?;
            if token.number(MAX_RANKS, "a rank")? != rank {
                return Err(token.error("the ranks in order"));
            }
            line.end()?;
            programs.push(read_program(&mut lines)?);
        }
        match lines.peek() {
            Some(mut line) => Err(line.token("a line")?.error("no more ranks than in the first line")),
            None if side_by_side => Ok(Schedule::listed(workers, cut, programs).with_chunks_side_by_side()),
            None => Ok(Schedule::listed(workers, cut, programs)),
        }
    }
}

/// Reads the lines up to the next rank.
fn read_program(lines: &mut Lines<'_>) -> Result<Program, TextError> {
    let mut program = ProgramBuilder::new();
    if let Some(mut line) = lines.peek_verb("slots") {
        for form in line.rest("a form", Token::form)? {
            program.slot(form);
        }
        lines.skip();
    }
    while let Some(mut line) = lines.peek() {
        let (span, before) = (line.take_span()?, program.steps());
        let verb = line.token("a step")?;
        match verb.text {
            "rank" => break,
            "send" => {
                let from = line.token("a place")?.place()?;
                line.keyword("->")?;
                program.send(from, line.rest("a rank", Token::rank)?);
            }
            "recv" => {
                let (chunk, into) = line.target("<-")?;
                program.recv(line.token("a rank")?.rank()?, chunk, into);
            }
            "fold" | "finish" => {
                let (chunk, into) = line.target("=")?;
                let sources = line.rest("a source", Token::source)?;
                program.fold_shaped(chunk, sources, into, verb.text == "finish");
            }
            "copy" | "encode" => {
                let into = line.token("a place")?.place()?;
                line.keyword("=")?;
                let from = line.token("a place")?.place()?;
                if verb.text == "copy" {
                    program.copy(from, into)
                } else {
                    program.encode(from, into)
                };
            }
            "decode" => {
                let (chunk, into) = line.target("=")?;
                let token = line.token("a source")?;
                let Source { from, merges: 0 } = token.source()? else {
                    return Err(token.error("a source without +"));
                };
                program.decode(chunk, from, into);
            }
            _ => return Err(verb.error("send, recv, fold, finish, copy, encode, decode or rank")),
        }
        line.end()?;
        // A send to nobody is no step.
        if let Some(span) = span.filter(|_| program.steps() > before) {
            program.span(span);
        }
        lines.skip();
    }
    Ok(program.build())
}

/// The lines that say something.
struct Lines<'a> {
    rest: core::str::Lines<'a>,
    /// The next line, if it has been looked at.
    peeked: Option<Line<'a>>,
    /// How many lines have been read.
    read: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.lines(), peeked: None, read: 0 }
    }

    fn peek(&mut self) -> Option<Line<'a>> {
        while self.peeked.is_none() {
            let text = self.rest.next()?;
            self.read += 1;
            let text = text.split_once('#').map_or(text, |(said, _)| said);
            self.peeked = (!text.trim().is_empty()).then_some(Line { number: self.read, text, at: 0 });
        }
        self.peeked
    }

    /// The next line behind its verb, if it is this one.
    fn peek_verb(&mut self, verb: &'static str) -> Option<Line<'a>> {
        let mut line = self.peek()?;
        line.keyword(verb).is_ok().then_some(line)
    }

    fn skip(&mut self) {
        self.peeked = None;
    }

    fn next(&mut self, expected: &'static str) -> Result<Line<'a>, TextError> {
        let line = self.peek();
        self.skip();
        let line_after = self.read + 1;
        line.ok_or(TextError { line: line_after, column: 1, found: String::new(), expected })
    }
}

/// A line, read up to a byte.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Line<'a> {
    /// The next token; empty at the end of the line.
    fn next(&mut self) -> Token<'a> {
        let rest = &self.text[self.at..];
        let start = self.at + rest.len() - rest.trim_start().len();
        let rest = &self.text[start..];
        self.at = start + rest.find(char::is_whitespace).unwrap_or(rest.len());
        let column = self.text[..start].chars().count() + 1;
        Token { line: self.number, column, text: &self.text[start..self.at] }
    }

    fn token(&mut self, expected: &'static str) -> Result<Token<'a>, TextError> {
        let token = self.next();
        if token.text.is_empty() { Err(token.error(expected)) } else { Ok(token) }
    }

    fn keyword(&mut self, keyword: &'static str) -> Result<(), TextError> {
        let token = self.next();
        if token.text == keyword { Ok(()) } else { Err(token.error(keyword)) }
    }

    /// Whether the next token is this one, which is read then.
    fn keyword_if(&mut self, keyword: &'static str) -> bool {
        let mut line = *self;
        let is_next = line.keyword(keyword).is_ok();
        if is_next {
            *self = line;
        }
        is_next
    }

    /// The span at the end of a step, if there is one, which is no longer part of the line then.
    fn take_span(&mut self) -> Result<Option<u32>, TextError> {
        let rest = self.text.trim_end();
        let Some((before, word)) = rest.rsplit_once(char::is_whitespace) else { return Ok(None) };
        if !word.starts_with('x') {
            return Ok(None);
        }
        let column = self.text[..rest.len() - word.len()].chars().count() + 1;
        let token = Token { line: self.number, column, text: word };
        self.text = before;
        match token.after("x", "a span")?.number(u32::from(u16::MAX), "a span of at most 65535 chunks")? {
            0 => Err(token.error("a span of at least 1")),
            span => Ok(Some(span)),
        }
    }

    /// The value of a setting; `name` ends in `=`.
    fn setting(&mut self, name: &'static str) -> Result<Token<'a>, TextError> {
        self.next().after(name, name)
    }

    /// A chunk, a place and an arrow.
    fn target(&mut self, arrow: &'static str) -> Result<(Chunk, Place), TextError> {
        let chunk = self.token("a chunk")?.after("c", "a chunk")?.number(u32::MAX, "a chunk")?;
        let into = self.token("a place")?.place()?;
        self.keyword(arrow)?;
        Ok((chunk, into))
    }

    /// All tokens that are left, at least one.
    fn rest<T>(
        &mut self,
        expected: &'static str,
        read: fn(Token<'a>) -> Result<T, TextError>,
    ) -> Result<Vec<T>, TextError> {
        let mut all = Vec::new();
        let mut token = self.token(expected)?;
        while !token.text.is_empty() {
            all.push(read(token)?);
            token = self.next();
        }
        Ok(all)
    }

    fn end(&mut self) -> Result<(), TextError> {
        let token = self.next();
        if token.text.is_empty() { Ok(()) } else { Err(token.error("the end of the line")) }
    }
}

/// A word and where it stands.
#[derive(Clone, Copy)]
struct Token<'a> {
    line: usize,
    column: usize,
    text: &'a str,
}

impl<'a> Token<'a> {
    fn error(self, expected: &'static str) -> TextError {
        let found = self.text.chars().take(40).collect();
        TextError { line: self.line, column: self.column, found, expected }
    }

    /// What follows a prefix.
    fn after(self, prefix: &str, expected: &'static str) -> Result<Self, TextError> {
        let text = self.text.strip_prefix(prefix).ok_or_else(|| self.error(expected))?;
        Ok(Self { column: self.column + prefix.chars().count(), text, ..self })
    }

    fn number(self, most: u32, expected: &'static str) -> Result<u32, TextError> {
        let digits = self.text.bytes().all(|byte| byte.is_ascii_digit());
        let number = self.text.parse().ok().filter(|number| digits && *number <= most);
        number.ok_or_else(|| self.error(expected))
    }

    fn rank(self) -> Result<u32, TextError> {
        self.number(u32::MAX, "a rank")
    }

    fn cut(self) -> Result<Cut, TextError> {
        const EXPECTED: &str = "even:chunks, blocks:chunks, weighted:weights, weighted_blocks:weights or given:parts, at most 65536";
        if let Ok(chunks) = self.after("even:", EXPECTED) {
            return Ok(Cut::Even { chunks: chunks.number(MAX_CHUNKS, EXPECTED)? });
        }
        if let Ok(chunks) = self.after("blocks:", EXPECTED) {
            return Ok(Cut::Blocks { chunks: chunks.number(MAX_CHUNKS, EXPECTED)? });
        }
        for (prefix, blocks) in [("weighted:", false), ("weighted_blocks:", true)] {
            if let Ok(weights) = self.after(prefix, EXPECTED) {
                let read = Weights::parse(weights.text, MAX_CHUNKS as usize);
                let weights = read.ok_or_else(|| weights.error("weights of 1 to 16, as runs: 16x3,1"))?;
                return Ok(Cut::Weighted { weights, blocks });
            }
        }
        Ok(Cut::Given { parts: self.after("given:", EXPECTED)?.number(MAX_CHUNKS, EXPECTED)? })
    }

    fn form(self) -> Result<Form, TextError> {
        match self.text {
            "plain" => Ok(Form::Plain),
            "acc" => Ok(Form::Acc),
            "coded" => Ok(Form::Coded),
            "result" => Ok(Form::CodedResult),
            _ => Err(self.error("plain, acc, coded or result")),
        }
    }

    fn place(self) -> Result<Place, TextError> {
        const EXPECTED: &str = "a place: u and a chunk, or s and a slot";
        if let Ok(chunk) = self.after("u", EXPECTED) {
            return Ok(Place::User(chunk.number(u32::MAX, EXPECTED)?));
        }
        Ok(Place::Slot(self.after("s", EXPECTED)?.number(u32::MAX, EXPECTED)?))
    }

    fn source(self) -> Result<Source, TextError> {
        const EXPECTED: &str = "a source: a place or @rank:form, and at most 255 +";
        let text = self.text.trim_end_matches('+');
        let merges = self.text.len() - text.len();
        let merges = u8::try_from(merges).map_err(|_| self.error(EXPECTED))?;
        let token = Self { text, ..self };
        let Ok(head) = token.after("@", EXPECTED) else {
            return Ok(Source { from: Origin::At(token.place()?), merges });
        };
        let (lane, form) = head.text.split_once(':').ok_or_else(|| self.error(EXPECTED))?;
        let form = Self { column: head.column + lane.chars().count() + 1, text: form, ..head }.form()?;
        Ok(Source { from: Origin::Head { lane: Self { text: lane, ..head }.rank()?, form }, merges })
    }
}

#[cfg(test)]
mod tests;
