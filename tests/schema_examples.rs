//! Validates every example beside the schemas: `good-*` must pass, `bad-*` must fail.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use serde_json::Value;
use tinyllm::schema::{Schema, validate};

fn examples(schema: Schema) -> Vec<(String, Value)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/examples").join(schema.name());
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), value)
        })
        .collect()
}

#[test]
fn good_examples_pass_and_bad_ones_fail() {
    for schema in Schema::ALL {
        let (mut good, mut bad) = (0, 0);
        for (name, value) in examples(schema) {
            let result = validate(schema, &value);
            if name.starts_with("good-") {
                good += 1;
                assert_eq!(result, Ok(()), "{}/{name}", schema.name());
            } else {
                assert!(name.starts_with("bad-"), "{name}: neither good nor bad");
                bad += 1;
                assert!(result.is_err(), "{}/{name} passes", schema.name());
            }
        }
        assert!(good >= 2 && bad >= 3, "{}: {good} good, {bad} bad", schema.name());
    }
}

/// Walks a schema and finds object schemas that would accept an unknown key.
fn open_objects(schema: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(map) = schema.as_object() {
        let closed =
            ["additionalProperties", "unevaluatedProperties"].iter().any(|key| map.contains_key(*key));
        let is_rule = map.contains_key("if") || path.ends_with("/if") || path.ends_with("/then");
        if map.get("type") == Some(&Value::from("object"))
            && map.contains_key("properties")
            && !closed
            && !is_rule
        {
            found.push(path.to_owned());
        }
        map.iter().for_each(|(key, value)| open_objects(value, &format!("{path}/{key}"), found));
    }
    if let Some(list) = schema.as_array() {
        list.iter().enumerate().for_each(|(at, value)| open_objects(value, &format!("{path}/{at}"), found));
    }
}

#[test]
fn schemas_are_closed_described_and_of_the_stated_draft() {
    for schema in Schema::ALL {
        let value: Value = serde_json::from_str(schema.text()).unwrap();
        assert_eq!(value["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert!(value["description"].as_str().unwrap().len() > 80, "{}", schema.name());
        let mut open = Vec::new();
        open_objects(&value, "", &mut open);
        assert_eq!(open, Vec::<String>::new(), "{}", schema.name());
    }
}
