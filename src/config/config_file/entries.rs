//! A configuration file's entries, with the lines they are on.

use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// One flag of a file.
#[derive(Debug)]
pub(super) struct Entry {
    /// As on the command line, without the leading dashes.
    pub name: String,
    pub value: Value,
    /// From 1.
    pub line: usize,
}

/// What a flag is set to.
#[derive(Debug)]
pub(super) enum Value {
    Switch(bool),
    /// As it would be typed.
    Text(String),
}

/// The line of an error, and what is wrong there.
pub(super) type Wrong = (usize, String);

/// Names are written with dashes or with underscores.
fn named(key: &str) -> String {
    key.replace('_', "-")
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// In the order of the file.
pub(super) fn of_toml(text: &str) -> Result<Vec<Entry>, Wrong> {
    let line = |span: Range<usize>| line_of(text, span.start);
    let table = DeTable::parse(text)
        .map_err(|error| (error.span().map_or(1, line), error.message().replace('\n', ", ")))?;
    let mut entries = Vec::new();
    for (key, value) in table.into_inner() {
        let (line, name) = (line(key.span()), named(key.get_ref()));
        let value = of_toml_value(value.get_ref()).map_err(|what| {
            (line, format!("`{name}` is a {what}; give it a value, or several as [A, B], and no tables"))
        })?;
        entries.push(Entry { name, value, line });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn of_toml_value(value: &DeValue<'_>) -> Result<Value, &'static str> {
    Ok(match value {
        DeValue::Boolean(on) => Value::Switch(*on),
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Value::Text(number.as_str().into()),
        DeValue::Integer(_) => return Err("number with another base than ten"),
        DeValue::Float(number) => Value::Text(number.as_str().into()),
        DeValue::Array(parts) => Value::Text(joined(parts.iter().map(|part| of_toml_value(part.get_ref())))?),
        DeValue::Datetime(_) => return Err("date"),
        DeValue::Table(_) => return Err("table"),
    })
}

/// As a list is typed.
fn joined(parts: impl Iterator<Item = Result<Value, &'static str>>) -> Result<String, &'static str> {
    let text = |part| match part {
        Value::Switch(on) => on.to_string(),
        Value::Text(text) => text,
    };
    Ok(parts.map(|part| part.map(text)).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// The entries of the object, or of its `flags`, as `config.json` has them.
pub(super) fn of_json(text: &str) -> Result<Vec<Entry>, Wrong> {
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|error| (error.line(), error.to_string()))?;
    let Some(object) = json.get("flags").unwrap_or(&json).as_object() else {
        return Err((1, "expected an object of flags".into()));
    };
    // The parser does not tell where a key was; the flags of a run come after its other settings.
    let from = text.find("\"flags\"").unwrap_or(0);
    let mut entries = Vec::new();
    for (key, value) in object {
        let at = text[from..].find(&format!("\"{key}\"")).map_or(0, |at| from + at);
        let (line, name) = (line_of(text, at), named(key));
        let value = of_json_value(value).map_err(|what| {
            (line, format!("`{name}` is {what}; give it a value, or several as [A, B], and no objects"))
        })?;
        entries.push(Entry { name, value, line });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn of_json_value(value: &serde_json::Value) -> Result<Value, &'static str> {
    use serde_json::Value as Json;
    Ok(match value {
        Json::Bool(on) => Value::Switch(*on),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => Value::Text(number.to_string()),
        Json::Array(parts) => Value::Text(joined(parts.iter().map(of_json_value))?),
        Json::Null => return Err("null"),
        Json::Object(_) => return Err("an object"),
    })
}
