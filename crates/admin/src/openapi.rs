//! The OpenAPI 3.1 document. It is written by hand, as the types of answers are in crates without HTTP. Tests compare
//! it with the routes and requests.

/// The OpenAPI document, as JSON.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use posthaste_control::Request;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::ask::scope_of;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// The names that serde lists in an error.
    fn expected(error: &str) -> BTreeSet<String> {
        let (_, names) = error.split_once("`, expected ").unwrap_or_else(|| panic!("{error}"));
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// The smallest value that a schema allows.
    fn smallest(document: &Value, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str() {
            return smallest(document, document.pointer(name.strip_prefix('#').unwrap()).unwrap());
        }
        if !schema["const"].is_null() {
            return schema["const"].clone();
        }
        if let Some(first) = schema["enum"].get(0) {
            return first.clone();
        }
        let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap();
        match kind {
            "object" => {
                let required = schema["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap());
                let members = required.map(|key| (key.to_owned(), smallest(document, &schema["properties"][key])));
                Value::Object(members.collect::<Map<_, _>>())
            }
            "array" => json!([]),
            "string" if schema["pattern"].is_null() => json!("x"),
            // A number of a message.
            "string" => json!("1"),
            "integer" => json!(1),
            kind => panic!("{kind}"),
        }
    }

    #[test]
    fn each_request_with_a_scope_is_documented_with_its_keys() {
        let document = document();
        let read = |request: &Value| serde_json::from_value::<Request>(request.clone());
        let all = expected(&read(&json!({ "ask": "" })).unwrap_err().to_string());
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut documented: BTreeSet<&str> = BTreeSet::new();
        for (name, schema) in schemas.iter().filter_map(|(name, schema)| Some((name.strip_prefix("ask-")?, schema))) {
            documented.insert(name);
            let mut request = smallest(&document, schema);
            let parsed = read(&request).unwrap_or_else(|error| panic!("{request}: {error}"));
            assert!(scope_of(&parsed).is_some(), "{name} is answered at the socket alone");
            request["no such key"] = json!(1);
            let error = read(&request).unwrap_err().to_string();
            let keys: BTreeSet<_> =
                schema["properties"].as_object().unwrap().keys().filter(|key| *key != "ask").cloned().collect();
            let known = if error.contains("there are no fields") { BTreeSet::new() } else { expected(&error) };
            assert_eq!(keys, known, "{name}");
        }
        let of_the_socket = [
            "acme",
            "cluster",
            "export",
            "import",
            "trace",
            "page",
            "forget-mailbox",
            "forget-guesses",
            "reload",
            "account",
        ];
        let missing: BTreeSet<&str> =
            all.iter().map(String::as_str).filter(|name| !documented.contains(name)).collect();
        assert_eq!(missing, BTreeSet::from(of_the_socket));
    }

    #[test]
    fn each_reference_leads_somewhere_and_the_version_is_ours() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(members) => {
                    found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                    members.values().for_each(|member| references(member, found));
                }
                Value::Array(values) => values.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for name in found {
            assert!(document.pointer(name.strip_prefix('#').unwrap()).is_some(), "{name}");
        }
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
