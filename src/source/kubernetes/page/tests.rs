use shunt_fake_apiserver::{Kind, protobuf};

use super::*;

/// Returns the items of a page that arrives in these parts, as JSON text or as the bytes of a
/// message, and the metadata.
fn read<'a>(
    content_type: ContentType,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Vec<Vec<u8>>, ListMetadata), Failure> {
    let mut items = Items::new(content_type);
    let mut read = Vec::new();
    for part in parts.into_iter().map(Some).chain([None]) {
        match part {
            Some(part) => items.push(part)?,
            None => drop(items.complete()?),
        }
        while items.advance()? {
            read.push(match items.current()? {
                Encoded::Json(json) => json.as_bytes().to_vec(),
                Encoded::Protobuf(message) => message.to_vec(),
            });
        }
    }
    items.end().map(|metadata| (read, metadata))
}

fn read_json(page: &str) -> Result<(Vec<String>, ListMetadata), Failure> {
    let (items, metadata) = read(ContentType::Json, [page.as_bytes()])?;
    let text = |item: Vec<u8>| String::from_utf8(item).unwrap();
    Ok((items.into_iter().map(text).collect(), metadata))
}

fn page_of(items: &[&str]) -> String {
    format!(
        r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"t","remainingItemCount":300}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn metadata(version: &str, next: Option<&str>) -> ListMetadata {
    ListMetadata { version: version.to_owned(), next: next.map(str::to_owned) }
}

#[test]
fn json_page_may_have_any_order_and_space() {
    for (page, expected) in [
        (r#" { "items" : [ ] , "metadata" : { "resourceVersion" : "1" } } "#, vec![]),
        (r#"{"items":[{},null , 5],"metadata":{"resourceVersion":"1"}}"#, vec!["{}", "null", "5"]),
        (r#"{"metadata":{"resourceVersion":"1"},"items":null}"#, vec![]),
        (r#"{"metadata":{"resourceVersion":"1","continue":""}}"#, vec![]),
    ] {
        let (items, ends) = read_json(page).unwrap();
        assert_eq!(items, expected, "{page}");
        assert_eq!(ends, metadata("1", None), "{page}");
    }
}

#[test]
fn invalid_json_page_is_a_failure_with_an_excerpt() {
    for (page, expected) in [
        ("{}", "{} (no list)"),
        (r#"{"kind":"Status","metadata":{},"status":"Failure"}"#, "(no list)"),
        ("<html>", "<html> (expected value at line 1 column 1)"),
        (r#"{"metadata":{"resourceVersion":"1"},"items":[{}"#, "EOF while parsing"),
    ] {
        let Err(Failure::Garbage(reason)) = read_json(page) else { panic!("{page}") };
        assert!(reason.contains(expected), "{reason}");
        assert!(reason.len() < 300, "{reason}");
    }
    let invalid = [br#"{"items":["#.as_slice(), b"\"\xff\"", b"]}"];
    assert!(matches!(read(ContentType::Json, invalid), Err(Failure::Garbage(_))));
}

#[test]
fn protobuf_page_may_arrive_in_any_parts() {
    let items = [r#"{"metadata":{"name":"a"}}"#, "{}", r#"{"metadata":{"name":"b"}}"#];
    let json = serde_json::from_str(&page_of(&items)).unwrap();
    let page = protobuf::body(Kind::Service, &json);
    let (messages, ends) = read(ContentType::Protobuf, [page.as_slice()]).unwrap();
    assert_eq!(messages.len(), 3);
    assert!(messages[0].windows(1).any(|byte| byte == b"a"));
    assert_eq!(ends, metadata("7", Some("t")));
    assert_eq!(read(ContentType::Protobuf, page.chunks(1)).unwrap().0, messages);
    for middle in 0..page.len() {
        let (first, second) = page.split_at(middle);
        let parts = read(ContentType::Protobuf, [first, second]);
        assert_eq!(parts.unwrap(), (messages.clone(), metadata("7", Some("t"))), "{middle}");
    }
}

/// An envelope around these bytes of a list.
fn envelope(list: &[u8]) -> Vec<u8> {
    let mut page = b"k8s\0\x12".to_vec();
    page.push(u8::try_from(list.len()).unwrap());
    page.extend(list);
    page
}

#[test]
fn unknown_fields_of_a_protobuf_page_are_skipped() {
    // Metadata with version "9"; a number; 8 and 4 bytes; a text; an item "x".
    let list = [
        b"\x0a\x03\x12\x019".as_slice(),
        b"\x18\x80\x01",
        b"\x21........\x2d....",
        b"\x32\x02ab",
        b"\x12\x01x",
    ];
    let mut page = envelope(&list.concat());
    // An empty contentEncoding, and a contentType.
    page.extend(b"\x1a\x00\x22\x01t");
    let expected = Ok((vec![b"x".to_vec()], metadata("9", None)));
    assert_eq!(read(ContentType::Protobuf, [page.as_slice()]), expected);
    assert_eq!(read(ContentType::Protobuf, page.chunks(1)), expected);
}

#[test]
fn invalid_protobuf_page_is_a_failure() {
    let version = b"\x0a\x03\x12\x019".as_slice();
    let with = |rest: &[u8]| envelope(&[version, rest].concat());
    let mut encoded = with(b"");
    encoded.extend(b"\x1a\x04gzip");
    let mut early = with(b"\x12\x01x");
    early.pop();
    for (page, expected) in [
        (b"".to_vec(), "an incomplete list"),
        (b"k8s\0".to_vec(), "a list without a resourceVersion"),
        (b"{}{}".to_vec(), r#"an object that begins with "{}{}""#),
        (envelope(b""), "a list without a resourceVersion"),
        (early, "an incomplete list"),
        (encoded, "contentEncoding gzip"),
        (with(b"\x12\x05x"), "an item longer than its list"),
        (with(&[0xff; 30]), "a list: "),
        (with(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "an item longer than its list"),
        (b"k8s\0\x0a\xff\xff\xff\xff\x0f".to_vec(), "an item of 4294967295 bytes; the limit"),
        (envelope(b"\x0a\x02\x10\x01"), "the metadata of a list"),
    ] {
        let read = read(ContentType::Protobuf, [page.as_slice()]);
        let Err(Failure::Encoding(reason)) = read else { panic!("{page:?}: {read:?}") };
        assert!(reason.contains(expected), "{reason}");
    }
}
