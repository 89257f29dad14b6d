//! Parameters of a run in MLflow: its configuration, flattened.

use serde_json::Value;
use std::collections::BTreeMap;

/// MLflow's limits, in bytes.
const MAX_NAME: usize = 250;
const MAX_VALUE: usize = 6000;

/// Flattens a JSON object: the field `b` of an object `a` becomes `a.b`.
///
/// Fields that are null are omitted, and values are truncated to MLflow's limit.
pub(super) fn flattened(config: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    flatten("", config, &mut found);
    found
}

fn flatten(prefix: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Null => return,
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, field, found);
            }
            return;
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    found.insert(metric_name(prefix), truncated(&text, MAX_VALUE).into());
}

/// Replaces the characters that MLflow does not accept in names of metrics and parameters.
pub(super) fn metric_name(name: &str) -> String {
    let accepted = |c: char| c.is_ascii_alphanumeric() || "_-. /".contains(c);
    let name: String = name.chars().map(|c| if accepted(c) { c } else { '_' }).collect();
    truncated(&name, MAX_NAME).into()
}

fn truncated(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_flattened_within_the_limits() {
        let long = "é".repeat(5000);
        let config = serde_json::json!({
            "lr": 0.05, "mode": "ddp", "none": null, "ids": [1, 2], "a": {"b": {"c": true}}, "top-k %": 1, "text": long,
        });
        let params = flattened(&config);
        let expected =
            [("a.b.c", "true"), ("ids", "[1,2]"), ("lr", "0.05"), ("mode", "ddp"), ("top-k _", "1")];
        for (name, value) in expected {
            assert_eq!(params[name], value, "{name}");
        }
        assert_eq!((params.len(), params["text"].len()), (6, 6000));
    }
}
