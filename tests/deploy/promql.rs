//! As much of PromQL as it takes to tell which metrics and labels a query names.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

/// Functions and aggregations that our queries call. One that is not here is as likely a mistake.
const CALLS: [&str; 12] = [
    "absent",
    "count",
    "histogram_quantile",
    "increase",
    "label_values",
    "max",
    "min",
    "rate",
    "sum",
    "time",
    "topk",
    "vector",
];

/// Words between expressions, and before a duration.
const OPERATORS: [&str; 5] = ["and", "bool", "offset", "or", "unless"];

/// Words before a list of labels in parentheses.
const GROUPINGS: [&str; 4] = ["by", "ignoring", "on", "without"];

/// What a query names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) metrics: BTreeSet<String>,
    /// In selectors and in groupings.
    pub(crate) labels: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Text,
    Sign(char),
}

/// The names in a query, or what is wrong with it.
pub(crate) fn names(query: &str) -> Result<Names> {
    let tokens = tokens(query)?;
    let sign = |at: usize, sign: char| tokens.get(at) == Some(&Token::Sign(sign));
    let mut names = Names::default();
    let mut open: Vec<char> = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            Token::Sign(bracket @ ('(' | '[' | '{')) => open.push(*bracket),
            Token::Sign(bracket @ (')' | ']' | '}')) => {
                let pair = (open.pop().context("a bracket is closed but not opened")?, *bracket);
                ensure!(matches!(pair, ('(', ')') | ('[', ']') | ('{', '}')), "brackets are mixed");
            }
            Token::Word(word) if open.last() == Some(&'{') => {
                ensure!(
                    sign(at + 1, '=') || sign(at + 1, '!'),
                    "{word}: a label is compared with = or !"
                );
                names.labels.insert(word.clone());
            }
            Token::Word(word) if GROUPINGS.contains(&word.as_str()) => {
                ensure!(sign(at + 1, '('), "{word} takes labels in parentheses");
                at += 2;
                while let Some(Token::Word(label)) = tokens.get(at) {
                    names.labels.insert(label.clone());
                    at += 1 + usize::from(sign(at + 1, ','));
                }
                ensure!(sign(at, ')'), "the labels after {word} do not end");
            }
            Token::Word(word) if word.starts_with(|c: char| c.is_ascii_digit() || c == '$') => {}
            Token::Word(word) if OPERATORS.contains(&word.as_str()) => {}
            Token::Word(word) if CALLS.contains(&word.as_str()) => {
                let grouped = matches!(tokens.get(at + 1), Some(Token::Word(w)) if GROUPINGS.contains(&w.as_str()));
                ensure!(sign(at + 1, '(') || grouped, "{word} is called without parentheses");
            }
            Token::Word(word) if sign(at + 1, '(') => bail!("{word} is no function that we use"),
            // The label that `label_values` is to list.
            Token::Word(word) if at > 0 && sign(at - 1, ',') && sign(at + 1, ')') => {
                names.labels.insert(word.clone());
            }
            Token::Word(word) => {
                names.metrics.insert(word.clone());
            }
            Token::Text | Token::Sign(_) => {}
        }
        at += 1;
    }
    ensure!(open.is_empty(), "a bracket is opened but not closed");
    Ok(names)
}

fn tokens(query: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = query.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            let end = rest[1..].find('"').context("a text does not end")?;
            tokens.push(Token::Text);
            end + 2
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..length].to_owned()));
            length
        } else {
            ensure!("()[]{},=!~<>+-*/".contains(first), "{first:?} has no place in a query");
            tokens.push(Token::Sign(first));
            first.len_utf8()
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_:$.".contains(c)
}

#[test]
fn names_are_found() -> Result<()> {
    let found = names(
        r#"histogram_quantile(0.99, sum by (instance, le) (rate(a_bucket{job="x",node=~"b_c"}[5m]))) > 1
           or max without (pod) (d{e!="f"}) * 60 and time() - g > 60"#,
    )?;
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found.metrics, set(&["a_bucket", "d", "g"]));
    assert_eq!(found.labels, set(&["e", "instance", "job", "le", "node", "pod"]));
    let found = names(r#"label_values(up{job="shunt"}, instance)"#)?;
    assert_eq!((found.metrics, found.labels), (set(&["up"]), set(&["instance", "job"])));
    Ok(())
}

#[test]
fn what_cannot_be_a_query_is_refused() {
    for query in
        ["sum(a", "sum(a))", "rat(a[5m])", "a{b}", "sum by a (b)", "a{b=\"c}", "sum[a)", "a;"]
    {
        assert!(names(query).is_err(), "{query}");
    }
}
