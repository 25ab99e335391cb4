//! The texts of objects in their API form, borrowed from the received answer where possible.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A text that borrows from a JSON text or from a protobuf message. Only a JSON text with escapes
/// is copied.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    /// Makes a text of the bytes of a protobuf message. Each invalid byte sequence becomes U+FFFD,
    /// as it does when the API server encodes the object as JSON.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Text<'_> {
        Text(String::from_utf8_lossy(bytes))
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text(text.into())
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text(text.into())
    }
}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(text.into())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(text.to_owned().into())
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Text<'de>, E> {
                Ok(text.into())
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// A time in `metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Time<'a> {
    /// RFC 3339, as in JSON.
    Text(Text<'a>),
    /// Seconds since 1970, as in protobuf.
    Seconds(i64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Time<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time<'a>, D::Error> {
        Text::deserialize(deserializer).map(Time::Text)
    }
}

impl fmt::Display for Time<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Time::Text(text) => text.fmt(f),
            Time::Seconds(seconds) => seconds.fmt(f),
        }
    }
}

/// The addresses of an endpoint. Only the first has a meaning (KEP-752), and only it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses<'a> {
    /// The first address.
    pub first: Option<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Addresses<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Addresses<'a>, D::Error> {
        struct AddressesVisitor;

        impl<'de> Visitor<'de> for AddressesVisitor {
            type Value = Addresses<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> Result<Addresses<'de>, A::Error> {
                let first = items.next_element()?;
                while items.next_element::<Text<'de>>()?.is_some() {}
                Ok(Addresses { first })
            }
        }

        deserializer.deserialize_seq(AddressesVisitor)
    }
}

#[cfg(any(test, feature = "fuzz"))]
mod write {
    //! Writes the texts as JSON, for comparisons of the encodings.

    use serde::{Serialize, Serializer};

    use super::{Addresses, Text, Time};

    impl Serialize for Text<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(self)
        }
    }

    impl Serialize for Time<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self {
                Time::Text(text) => text.serialize(serializer),
                Time::Seconds(seconds) => match jiff::Timestamp::from_second(*seconds) {
                    Ok(time) => serializer.collect_str(&time),
                    Err(_) => seconds.to_string().serialize(serializer),
                },
            }
        }
    }

    impl Serialize for Addresses<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(&self.first)
        }
    }
}
