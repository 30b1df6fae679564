//! The codecs' names, as users write them, and their numbers, as ranks compare them.

use super::{Codec, Parameter};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, iter::once, str::FromStr};

/// A codec's code, which ranks compare and send. The default is the code of [`Codec::Plain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CodecCode {
    /// Which codec.
    pub number: u32,
    /// The bits of its parameter; 0 if it has none.
    pub parameter: u32,
}

/// A text that names no codec, or has no number that goes with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseCodecError {
    text: String,
    may_be_automatic: bool,
}

impl ParseCodecError {
    /// The same where the plan may choose.
    pub(super) fn or_automatic(self) -> Self {
        Self { may_be_automatic: true, ..self }
    }
}

impl core::error::Error for ParseCodecError {}

impl fmt::Display for ParseCodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, may_be_automatic } = self;
        let name = text.split(':').next().unwrap_or("").trim();
        match once(Codec::Plain).chain(Codec::EXAMPLES).find(|codec| codec.name() == name) {
            None => {
                let automatic = if *may_be_automatic { "auto, " } else { "" };
                write!(f, "no codec is called {text:?}: use {automatic}{}", forms())
            }
            Some(codec) => match codec {
                Codec::OneBit { .. } => {
                    write!(f, "{text:?}: its threshold is a finite number, as in onebit:0")
                }
                Codec::TwoBit { .. } | Codec::Threshold { .. } => {
                    write!(f, "{text:?}: its threshold is a number above 0, as in {codec}")
                }
                Codec::TopK { .. } | Codec::RandomK { .. } => {
                    write!(f, "{text:?}: its share is a number above 0 and at most 1, as in {codec}")
                }
                _ => write!(f, "{text:?}: {codec} takes no number"),
            },
        }
    }
}

/// MXNet's threshold where none is given.
const THRESHOLD: f32 = 0.5;

/// The share of the examples.
const SHARE: f32 = 0.01;

/// How names are written: `none, bf16, ..., topk:SHARE or exact`.
fn forms() -> String {
    let form = |codec: Codec| match codec.parameter() {
        Some((parameter, _)) => format!("{}:{parameter}", codec.name()),
        None => codec.name().to_string(),
    };
    let forms: Vec<String> = once(Codec::Plain).chain(Codec::EXAMPLES).map(form).collect();
    match forms.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl Codec {
    /// One codec of each kind that changes messages, with a parameter as programs choose it. Lists of codecs come from here.
    pub const EXAMPLES: [Self; 10] = [
        Self::Bf16,
        Self::Fp16,
        Self::Int8,
        Self::OneBit { threshold: Parameter::new(0.0) },
        Self::TwoBit { threshold: Parameter::new(THRESHOLD) },
        Self::Sign,
        Self::TopK { share: Parameter::new(SHARE) },
        Self::RandomK { share: Parameter::new(SHARE) },
        Self::Threshold { threshold: Parameter::new(THRESHOLD) },
        Self::Exact,
    ];

    /// Its code on the wire, which never changes.
    pub fn code(self) -> CodecCode {
        let (number, parameter) = match self {
            Self::Plain => (0, 0),
            Self::Bf16 => (1, 0),
            Self::Fp16 => (2, 0),
            Self::Int8 => (3, 0),
            Self::OneBit { threshold } => (4, threshold.0),
            Self::TwoBit { threshold } => (5, threshold.0),
            Self::Sign => (6, 0),
            Self::TopK { share } => (7, share.0),
            Self::RandomK { share } => (8, share.0),
            Self::Threshold { threshold } => (9, threshold.0),
            Self::Exact => (10, 0),
        };
        CodecCode { number, parameter }
    }

    /// The codec that a code stands for, if this version has it.
    pub fn from_code(code: CodecCode) -> Option<Self> {
        let number = Parameter(code.parameter);
        let codec = match code.number {
            0 => Self::Plain,
            1 => Self::Bf16,
            2 => Self::Fp16,
            3 => Self::Int8,
            4 => Self::OneBit { threshold: number },
            5 => Self::TwoBit { threshold: number },
            6 => Self::Sign,
            7 => Self::TopK { share: number },
            8 => Self::RandomK { share: number },
            9 => Self::Threshold { threshold: number },
            10 => Self::Exact,
            _ => return None,
        };
        (codec.code() == code && codec.is_possible()).then_some(codec)
    }

    /// Whether its parameter makes sense.
    fn is_possible(self) -> bool {
        let value = |parameter: Parameter| parameter.value();
        match self {
            Self::OneBit { threshold } => value(threshold).is_finite(),
            Self::TwoBit { threshold } | Self::Threshold { threshold } => {
                value(threshold).is_finite() && value(threshold) > 0.0
            }
            Self::TopK { share } | Self::RandomK { share } => value(share) > 0.0 && value(share) <= 1.0,
            _ => true,
        }
    }

    /// Its parameter, with the word that stands for such a one.
    fn parameter(self) -> Option<(&'static str, Parameter)> {
        match self {
            Self::OneBit { threshold } | Self::TwoBit { threshold } | Self::Threshold { threshold } => {
                Some(("THRESHOLD", threshold))
            }
            Self::TopK { share } | Self::RandomK { share } => Some(("SHARE", share)),
            _ => None,
        }
    }

    /// Its name without the parameter.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "none",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Int8 => "int8",
            Self::OneBit { .. } => "onebit",
            Self::TwoBit { .. } => "twobit",
            Self::Sign => "sign",
            Self::TopK { .. } => "topk",
            Self::RandomK { .. } => "randomk",
            Self::Threshold { .. } => "threshold",
            Self::Exact => "exact",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parameter() {
            Some((_, parameter)) => write!(f, "{}:{}", self.name(), parameter.value()),
            None => f.write_str(self.name()),
        }
    }
}

impl FromStr for Codec {
    type Err = ParseCodecError;

    /// Reads `twobit:0.5`; spaces around names and numbers do not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseCodecError { text: text.to_string(), may_be_automatic: false })
    }
}

fn parse(text: &str) -> Option<Codec> {
    let (name, number) = match text.split_once(':') {
        None => (text.trim(), None),
        Some((name, number)) => (name.trim(), Some(Parameter::new(number.trim().parse().ok()?))),
    };
    let threshold = number.unwrap_or(Parameter::new(THRESHOLD));
    let codec = match (name, number) {
        ("none" | "plain", None) => Codec::Plain,
        ("bf16", None) => Codec::Bf16,
        ("fp16", None) => Codec::Fp16,
        ("int8", None) => Codec::Int8,
        ("onebit", _) => Codec::OneBit { threshold },
        ("twobit", _) => Codec::TwoBit { threshold },
        ("sign", None) => Codec::Sign,
        ("topk", Some(share)) => Codec::TopK { share },
        ("randomk", Some(share)) => Codec::RandomK { share },
        ("threshold", Some(threshold)) => Codec::Threshold { threshold },
        ("exact", None) => Codec::Exact,
        _ => return None,
    };
    codec.is_possible().then_some(codec)
}
