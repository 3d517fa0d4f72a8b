//! Tables whose shape one of their fields decides (`arch`, `name`), read so that an error keeps its path.
//!
//! serde reads such a table into a buffer and forgets where in it an error lies. Here the rest of the table is read
//! with the path written down; [`super::parse`] puts it behind the table's own.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, IntoDeserializer, Visitor};
use serde_json::{Map, Value};

/// How an error within a table begins: this, the path, and [`AFTER_PATH`].
pub(crate) const BEFORE_PATH: &str = "field `";
/// What follows the path.
pub(crate) const AFTER_PATH: &str = "`: ";

/// A table without the fields that were taken out of it.
#[derive(Debug)]
pub(crate) struct Table {
    fields: Map<String, Value>,
    /// Names that may stand in the table beside those of what the rest is read as.
    taken: Vec<&'static str>,
}

impl Table {
    pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = serde::Deserialize::deserialize(deserializer)?;
        Ok(Self { fields, taken: Vec::new() })
    }

    /// Takes a field out. `None` where it is absent or null.
    pub(crate) fn take<T: DeserializeOwned, E: Error>(
        &mut self,
        field: &'static str,
    ) -> Result<Option<T>, E> {
        self.taken.push(field);
        match self.fields.remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_path_to_error::deserialize(value)
                .map(Some)
                .map_err(|error| within(&join(field, &error.path().to_string()), error.inner())),
        }
    }

    /// Takes out the field that says what the rest is.
    pub(crate) fn tag<E: Error>(&mut self, field: &'static str) -> Result<String, E> {
        self.take(field)?.ok_or_else(|| E::missing_field(field))
    }

    /// Reads what is left. A field that `T` lacks is refused, although `T` does not say so itself: its schema is a
    /// part of a larger one.
    pub(crate) fn rest<T: DeserializeOwned, E: Error>(self) -> Result<T, E> {
        serde_path_to_error::deserialize(self)
            .map_err(|error| within(&error.path().to_string(), error.inner()))
    }
}

impl<'de> Deserializer<'de> for Table {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        Value::Object(self.fields).into_deserializer().deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match self.fields.keys().find(|field| !known.contains(&field.as_str())) {
            None => self.deserialize_any(visitor),
            Some(field) => {
                let known = known.iter().chain(&self.taken).map(|name| format!("`{name}`"));
                let known: Vec<String> = known.collect();
                let known = known.join(", ");
                Err(Error::custom(format!("unknown field `{field}`, expected one of {known}")))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn within<E: Error>(path: &str, error: &impl fmt::Display) -> E {
    match path {
        "." => E::custom(error),
        path => E::custom(format_args!("{BEFORE_PATH}{path}{AFTER_PATH}{error}")),
    }
}

/// `a` and `b` as `a.b`; either may be the whole (`.` or nothing).
pub(crate) fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("" | ".", "" | ".") => String::new(),
        (outer, "" | ".") => outer.to_owned(),
        ("" | ".", inner) => inner.to_owned(),
        (outer, inner) => format!("{outer}.{inner}"),
    }
}
