//! Entries of a configuration file, with line numbers for errors.

use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// One flag of a file.
#[derive(Debug)]
pub(super) struct Entry {
    /// Name of the flag, without leading dashes.
    pub name: String,
    pub value: Value,
    /// Line number, from 1.
    pub line: usize,
}

/// Value of a flag.
#[derive(Debug)]
pub(super) enum Value {
    Switch(bool),
    /// Command-line form.
    Text(String),
}

/// Line number and message of a parse error.
pub(super) type EntryError = (usize, String);

/// Converts a key, with dashes or underscores, to a flag name.
fn flag_name(key: &str) -> String {
    key.replace('_', "-")
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Parses TOML; entries keep the order of the file.
pub(super) fn of_toml(text: &str) -> Result<Vec<Entry>, EntryError> {
    let line = |span: Range<usize>| line_of(text, span.start);
    let table = DeTable::parse(text)
        .map_err(|error| (error.span().map_or(1, line), error.message().replace('\n', ", ")))?;
    let mut entries = Vec::new();
    for (key, value) in table.into_inner() {
        let (line, name) = (line(key.span()), flag_name(key.get_ref()));
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
        DeValue::Integer(_) => return Err("number that is not decimal"),
        DeValue::Float(number) => Value::Text(number.as_str().into()),
        DeValue::Array(parts) => Value::Text(joined(parts.iter().map(|part| of_toml_value(part.get_ref())))?),
        DeValue::Datetime(_) => return Err("date"),
        DeValue::Table(_) => return Err("table"),
    })
}

/// Joins the parts of a list with commas.
fn joined(parts: impl Iterator<Item = Result<Value, &'static str>>) -> Result<String, &'static str> {
    let text = |part| match part {
        Value::Switch(on) => on.to_string(),
        Value::Text(text) => text,
    };
    Ok(parts.map(|part| part.map(text)).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// Parses a JSON object, or its `flags` object as in `config.json`.
pub(super) fn of_json(text: &str) -> Result<Vec<Entry>, EntryError> {
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|error| (error.line(), error.to_string()))?;
    let Some(object) = json.get("flags").unwrap_or(&json).as_object() else {
        return Err((1, "expected an object of flags".into()));
    };
    // serde_json does not report the positions of keys. In config.json, `flags` is the last entry.
    let from = text.find("\"flags\"").unwrap_or(0);
    let mut entries = Vec::new();
    for (key, value) in object {
        let at = text[from..].find(&format!("\"{key}\"")).map_or(0, |at| from + at);
        let (line, name) = (line_of(text, at), flag_name(key));
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
