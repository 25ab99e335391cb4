//! Parses texts as documents: JSON at once, all else by the reader of YAML.

use serde_json::value::RawValue;

use super::document::{Document, SyntaxError, newlines, parts};
use super::reader::YamlReader;

/// Parses the documents of a text leniently: of duplicate keys the last one counts, and the others are
/// returned as errors. The text after the first document may be invalid, which is returned as an error, too.
pub fn parse_leniently(bytes: &[u8]) -> Result<(Vec<Document<'_>>, Vec<SyntaxError>), SyntaxError> {
    let mut reader = YamlReader::new(text(bytes)?);
    reader.overridden = Some(Vec::new());
    let mut documents = Vec::new();
    let mut invalid = None;
    for document in reader.by_ref() {
        match document {
            Ok(document) => documents.push(document),
            Err(error) if documents.is_empty() => return Err(error),
            Err(error) => {
                let reason =
                    format!("invalid text after the first document, ignored: {}", error.reason);
                invalid = Some(SyntaxError { reason, ..error });
            }
        }
    }
    Ok((documents, reader.overridden.into_iter().flatten().chain(invalid).collect()))
}

/// Parses the documents of a text one by one, to keep only one in memory. Omits empty ones; an
/// error is the last item.
pub fn documents(
    bytes: &[u8],
) -> Result<impl Iterator<Item = Result<Document<'_>, SyntaxError>>, SyntaxError> {
    let text = text(bytes)?;
    let json = of_json(text);
    let yaml = json.is_none().then(|| YamlReader::new(text));
    Ok(json.into_iter().flatten().map(Ok).chain(yaml.into_iter().flatten()))
}

fn text(bytes: &[u8]) -> Result<&str, SyntaxError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        SyntaxError {
            line: newlines(before).saturating_add(1),
            column: u32::try_from(column).unwrap_or(u32::MAX),
            reason: "the bytes here are not valid UTF-8 text".into(),
        }
    })?;
    // Only a byte order mark at the beginning is removed.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Returns the documents of a text that is JSON: the reader of YAML would take ten times as long.
fn of_json(text: &str) -> Option<Vec<Document<'_>>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let values: Vec<&RawValue> = values.collect::<Result<_, _>>().ok()?;
    Some(parts(text, 1, values).collect())
}
