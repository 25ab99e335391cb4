//! Cases for reading texts: what they mean, and what the worst of them may cost.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

pub mod cases;

fn parse(bytes: &[u8]) -> Result<Vec<Document<'_>>, SyntaxError> {
    documents(bytes)?.collect()
}

fn one(text: &str) -> Document<'_> {
    let mut documents = parse(text.as_bytes()).unwrap();
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

fn error(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn documents_are_read_and_empty_ones_left_out() {
    for (text, count) in [
        ("", 0),
        ("---\n---\n# nothing\n---\n", 0),
        ("a: 1\n---\nb: 2\n---\n", 2),
        ("a: 1\n...\n---\nb: 2\n", 2),
        ("{\"a\": 1}", 1),
        ("{\n\t\"a\": [\n\t\t1,\n\t\t2\n\t]\n}\n", 1),
        ("\u{feff}a: 1\n", 1),
        ("a: 1\r\nb: 2\r\n", 1),
    ] {
        assert_eq!(parse(text.as_bytes()).unwrap().len(), count, "{text:?}");
    }
}

#[test]
fn lines_are_those_of_the_keys() {
    let text = "# a comment\nspec:\n  ports:\n  - name: http\n    port: 80\n  - port: 0\nx: |\n  a\n  b\nlast: 1\n";
    let node = one(text);
    for (at, line) in [
        ("spec", 2),
        ("spec.ports", 3),
        ("spec.ports.0", 4),
        ("spec.ports.0.port", 5),
        ("spec.ports.1.port", 6),
        ("last", 10),
        // What is not there is where it would be.
        ("spec.ports.1.name", 6),
        ("spec.clusterIP", 2),
        ("nothing.at.all", 2),
    ] {
        assert_eq!(node.line_of(at), line, "{at}");
    }
    assert_eq!(parse(b"a: 1\n---\nb:\n  c: 1\n").unwrap()[1].line_of("b.c"), 4);
    // Those of JSON, of what comes by an alias, and of what is after it.
    let lists = one("{\n\"a\":\n [1,\n  {\"b\":\n 2}]}");
    assert_eq!(["a.0", "a.1", "a.1.b"].map(|it| lists.line_of(it)), [3, 4, 5]);
    let aliases = one("a: &a\n  b: 1\n  c: 2\nd: *a\ne:\n  <<: *a\n  f: 3\ng: 4\n");
    let lines = ["d", "d.c", "e.c", "e.f", "g"].map(|it| aliases.line_of(it));
    assert_eq!(lines, [4, 4, 6, 7, 8]);
}

#[test]
fn syntax_errors_name_the_place() {
    for (text, message) in [
        ("a: 1\nb: [1, 2\n", "line 2, column 4"),
        ("a: 1\n b: 2\n", "line 2"),
        ("a: 1\nb: 2\na: 3\n", "the key a is already in line 1"),
        ("a: 1\nb: *x\n", "line 2, column 4"),
        ("a: &x\n  b: *x\n", "refers to a value that contains it"),
        ("? [a]\n: b\n", "cannot be a key"),
        ("b:\n  <<: 5\n", "a merge key (<<) needs a mapping"),
        ("b:\n  <<: [{a: 1}, 5]\n", "a merge key (<<) needs a mapping"),
        ("b: {a: 1, <<: {c: 1}, a: 2}\n", "the key a is already in line 1"),
        ("{~: 1}", "null cannot be a key"),
        ("{yes: 1, on: 2}", "the key true is already in line 1"),
        ("a: !!binary '*'", "not text in base64"),
        ("a: .inf", "line 1, column 4: not a finite number"),
        ("a: &a b\n*a : 1\n", "an alias cannot be a key"),
        ("a: \0\n", "line 1"),
    ] {
        let error = error(text);
        assert!(error.contains(message), "{text:?}: {error}");
    }
    let error = parse(b"a: 1\nb: \xff\n").unwrap_err();
    assert_eq!((error.line, error.column), (2, 4));
}

#[test]
fn aliases_that_copy_too_many_bytes_are_refused() {
    let text = |aliases: usize| {
        let long = "x".repeat(100_000);
        format!("a: &a \"{long}\\n\"\nb:\n{}", "- *a\n".repeat(aliases))
    };
    assert!(parse(text(15).as_bytes()).is_ok());
    let text = text(9_900);
    let limit = 1024 * 1024 + 10 * text.len();
    assert_eq!(
        error(&text),
        format!(
            "line 27, column 3: anchors and aliases copy more than {limit} bytes; write the values out"
        )
    );
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Thing {
    text: Option<String>,
    number: Option<i64>,
    port: u16,
    flag: Option<bool>,
    ratio: Option<f64>,
    list: Vec<Thing>,
}

#[test]
fn values_of_another_type_are_named() {
    let thing = |text: &str| typed::<Thing>(one(text).json());
    for (text, message) in [
        ("text: 80", "text: must be text, not a number; put it in quotes"),
        ("text: true", "text: must be text, not true or false; put it in quotes"),
        ("number: '80'", "number: must be a whole number, not text; remove the quotes"),
        ("number: 1:30", "number: must be a whole number, not text"),
        ("text: 010", "text: must be text, not a number; put it in quotes"),
        ("text: yes", "text: must be text, not true or false; put it in quotes"),
        ("number: 1.5", "number: must be a whole number, not a number"),
        ("flag: 'yes'", "flag: must be true or false, not text"),
        ("list: {a: 1}", "list: must be a list, not a mapping"),
        ("list: [{list: [{number: x}]}]", "list[0].list[0].number: must be a whole number"),
        ("port: 65536", "port: out of range"),
        ("a", ": must be a mapping, not text"),
    ] {
        let error = thing(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

/// Ten megabytes of each of these once took some parser minutes, its stack, or all memory.
#[test]
fn malice_costs_no_more_than_its_length() {
    let bomb: String = (0..30).fold("a0: &a0 x\n".into(), |text, i| {
        text + &format!("a{}: &a{} [*a{i}, *a{i}, *a{i}, *a{i}]\n", i + 1, i + 1)
    });
    let nested_anchors: String = (0..60).map(|i| format!("&a{i} [x, ")).collect();
    let million = |text: &str| text.repeat(1_000_000 / text.len());
    let mut texts = vec![bomb, nested_anchors, million("a: &x [1]\n"), million("- &a a\n- *a\n")];
    for unit in ["[", "{", "- ", "? ", "a: ", "\"", "'", "&a ", "*a ", "!", "%", "|\n", "-\n", "é"]
    {
        texts.push(million(unit));
        texts.push(format!("[{}", million(unit)));
        texts.push(format!("key: {}", million(unit)));
        texts.push(format!("key: \"{}", million(unit)));
    }
    // Large texts that many aliases copy: with an escape, without one, as a key, and document by document.
    let copied = format!("{}\\n", "x".repeat(100_000));
    let aliases = "*a , ".repeat(9_900);
    texts.push(format!("a: &a \"{copied}\"\nb: [{aliases}]\n"));
    texts.push(format!("a: &a {}\nb: [{aliases}]\n", &copied[..100_000]));
    texts.push(format!("a: &a\n  ? \"{copied}\"\n  : 1\nb: [{aliases}]\n"));
    texts.push(
        format!("- &a [{}]\n- [{}]\n---\n", "x,".repeat(90), "*a , ".repeat(100)).repeat(100),
    );
    texts.push((0..2_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect());
    texts.push((0..50_000).map(|i| format!("key{i}: 1\n")).collect());
    for text in texts {
        let mut result = Ok(Vec::new());
        // Also what becomes of the nodes: a value copies the texts that they borrow.
        let memory = allocation_counter::measure(|| {
            result = parse(text.as_bytes());
            for node in result.iter().flatten() {
                let _ = node.value();
            }
        });
        let limit = 8 * 1024 * 1024 + 100 * text.len() as u64;
        assert!(memory.bytes_total < limit, "{}: {memory:?}", excerpt(&text));
        if let Err(error) = result {
            assert!(error.to_string().len() < 1_000);
        }
    }
}

/// Any JSON value, with texts that look like anything that YAML has a meaning for.
fn json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[ \\-:#{}\\[\\]&*!<~a1,'\"\\\\\u{1f600}]{0,8}".prop_map(Value::from),
        "[0-9a-fobxe_.+-]{0,6}".prop_map(Value::from),
        "(?i)yes|no|on|off|y|n|true|null|~|<<|\\.inf|\\.nan".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let key = prop_oneof![any::<String>(), "[a-c<~ ]{0,3}"];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((key, inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn json_is_read_as_json(value in json()) {
        for text in [value.to_string(), format!("{value:#}")] {
            let documents = parse(text.as_bytes());
            prop_assert!(documents.is_ok(), "{text}: {documents:?}");
            match &documents.unwrap()[..] {
                [document] => prop_assert_eq!(document.value(), value.clone()),
                other => prop_assert!(value.is_null() && other.is_empty()),
            }
        }
    }

    #[test]
    fn no_yaml_like_text_crashes(text in "([a-c0-9&*!|>%@`\"'#,:?\\[\\]{}~<. \n-]|: |\n  |\n- |---\n){0,60}") {
        if let Ok(documents) = parse(text.as_bytes()) {
            for node in documents {
                let _ = typed::<Thing>(node.json());
                prop_assert!(serde_json::from_str::<serde_json::Value>(node.json()).is_ok());
            }
        }
    }
}

proptest! {
    /// The writer knows YAML as we read it: a text that Kubernetes would take for a number is in
    /// quotes.
    #[test]
    fn what_is_written_is_read_back(value in json()) {
        let text = serde_saphyr::to_string(&serde_json::json!({ "value": value })).unwrap();
        let documents = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        prop_assert_eq!(&documents[0].value()["value"], &value, "{}", text);
    }
}
