//! Macros for the repetitive parts of types, also for the other crates of the workspace.

/// Defines methods that set a field and return the changed value.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty) => $($field:ident).+ = $new:expr;)*) => { $(
        $(#[$doc])*
        pub fn $name(mut self, $value: $type) -> Self {
            self.$($field).+ = $new;
            self
        }
    )* };
}

/// Formats a type for `Debug` as a short text. The closure names the value for the arguments.
macro_rules! debug_text {
    ($type:ident, $text:literal $(, |$value:ident| $($argument:expr),+)?) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $(let $value = self;)?
                write!(f, $text $($(, $argument)+)?)
            }
        }
    };
}

/// Lists and names the variants of an enum.
#[doc(hidden)]
#[macro_export]
macro_rules! variants {
    ($type:ident: $($variant:ident = $name:literal),*) => {
        impl $type {
            /// All variants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name, such as on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

/// Names the variants of an enum, which is displayed and parsed by them. `$unknown` is the error's message.
#[doc(hidden)]
#[macro_export]
macro_rules! names {
    ($type:ident, $unknown:literal: $($variants:tt)*) => {
        $crate::variants! { $type: $($variants)* }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<Self> {
                let named = Self::ALL.into_iter().find(|variant| variant.name() == text);
                named.ok_or_else(|| $crate::Error::Invalid(format!($unknown, text)))
            }
        }
    };
}
