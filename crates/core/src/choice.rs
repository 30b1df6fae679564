//! Enums of a few variants that users write by name.

/// A name that stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {what}: use one of {known}")]
pub struct UnknownName {
    /// What it should name.
    pub(crate) what: &'static str,
    /// The names of all variants.
    pub(crate) known: &'static str,
}

/// Defines an enum without fields whose variants have names, and says first what one is, with its article: it lists all of them (`ALL`), gives
/// the `name` of each, reads it and shows it. If its variants have numbers, these are their codes (`code`, `from_code`), which count
/// from 0.
macro_rules! choices {
    ($what:literal: $(#[$about:meta])* $vis:vis enum $Name:ident {
        $($(#[$of:meta])* $Variant:ident = $code:literal => $name:literal,)+
    }) => {
        $crate::choice::choices! { $what: $(#[$about])* #[repr(u8)] $vis enum $Name { $($(#[$of])* $Variant => $name,)+ } }

        impl $Name {
            /// The number that stands for it in messages. Never changes.
            pub fn code(self) -> u8 {
                self as u8
            }

            /// The one with this [`code`](Self::code).
            pub fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$Variant),)+
                    _ => None,
                }
            }
        }

        const _: () = assert!($($Name::$Variant as u8 == $code)&&+, "codes count from 0");
    };
    ($what:literal: $(#[$about:meta])* $vis:vis enum $Name:ident {
        $(#[$of_first:meta])* $First:ident => $first:literal, $($(#[$of:meta])* $Variant:ident => $name:literal,)*
    }) => {
        $(#[$about])*
        $vis enum $Name { $(#[$of_first])* $First, $($(#[$of])* $Variant,)* }

        impl $Name {
            /// All of them, in the order of their definition.
            pub const ALL: [Self; [$first, $($name),*].len()] = [Self::$First, $(Self::$Variant),*];

            /// Its name, as users write it.
            pub fn name(self) -> &'static str {
                match self {
                    Self::$First => $first,
                    $(Self::$Variant => $name,)*
                }
            }
        }

        impl core::str::FromStr for $Name {
            type Err = $crate::choice::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let error = Self::Err { what: $what, known: concat!($first $(, ", ", $name)*) };
                Self::ALL.into_iter().find(|choice| choice.name() == name).ok_or(error)
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use choices;
