use std::iter::once;

use hyper::Request;
use hyper::header::CONTENT_TYPE;
use kube::Client;
use shunt_fake_apiserver::{Kind, protobuf};
use tower::service_fn;

use super::super::tests::script::Parts;
use super::*;

/// Returns the items of a page that arrives in these parts, as JSON text or as the bytes of a
/// message, and the metadata.
async fn read_parts<'a>(
    content_type: ContentType,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(Vec<Vec<u8>>, ListMetadata), RequestFailure> {
    let mut answer = Response::new(Parts::ending(parts));
    answer.headers_mut().insert(CONTENT_TYPE, content_type.as_str().parse().unwrap());
    let mut answer = Some(answer);
    let server = service_fn(move |_| std::future::ready(answer.take().ok_or("asked twice")));
    let answer = Client::new(server, "default").send(Request::new(Body::empty())).await.unwrap();
    let mut items = Vec::new();
    let metadata = read(answer, |item| {
        items.push(match item {
            Encoded::Json(json) => json.as_bytes().to_vec(),
            Encoded::Protobuf(message) => message.to_vec(),
        });
    });
    let metadata = metadata.await?;
    Ok((items, metadata))
}

fn page_of(items: &[&str]) -> String {
    format!(
        r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"t","remainingItemCount":300}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn metadata(version: &str, next: &str) -> ListMetadata {
    ListMetadata { version: version.to_owned(), next: next.to_owned() }
}

#[tokio::test]
async fn json_page_may_have_any_order_and_space() {
    for (page, expected) in [
        (r#" { "items" : [ ] , "metadata" : { "resourceVersion" : "1" } } "#, vec![]),
        (r#"{"items":[{},null , 5],"metadata":{"resourceVersion":"1"}}"#, vec!["{}", "null", "5"]),
        (r#"{"metadata":{"resourceVersion":"1"},"items":null}"#, vec![]),
        (r#"{"metadata":{"resourceVersion":"1","continue":""}}"#, vec![]),
    ] {
        let expected = expected.into_iter().map(|item| item.as_bytes().to_vec()).collect();
        let read = read_parts(ContentType::Json, once(page.as_bytes())).await;
        assert_eq!(read, Ok((expected, metadata("1", ""))), "{page}");
    }
}

#[tokio::test]
async fn invalid_json_page_is_a_failure_with_an_excerpt() {
    for (page, expected) in [
        ("{}", "{} (no list)"),
        (r#"{"kind":"Status","metadata":{},"status":"Failure"}"#, "(no list)"),
        ("<html>", "<html> (expected value at line 1 column 1)"),
        (r#"{"metadata":{"resourceVersion":"1"},"items":[{}"#, "EOF while parsing"),
    ] {
        let read = read_parts(ContentType::Json, once(page.as_bytes())).await;
        let Err(RequestFailure::Garbage(reason)) = read else { panic!("{page}") };
        assert!(reason.contains(expected), "{reason}");
        assert!(reason.len() < 300, "{reason}");
    }
    let invalid = [br#"{"items":["#.as_slice(), b"\"\xff\"", b"]}"];
    assert!(matches!(
        read_parts(ContentType::Json, invalid).await,
        Err(RequestFailure::Garbage(_))
    ));
}

#[tokio::test]
async fn protobuf_page_may_arrive_in_any_parts() {
    let items = [r#"{"metadata":{"name":"a"}}"#, "{}", r#"{"metadata":{"name":"b"}}"#];
    let json = serde_json::from_str(&page_of(&items)).unwrap();
    let page = protobuf::body(Kind::Service, &json);
    let read = read_parts(ContentType::Protobuf, once(&*page)).await.unwrap();
    assert_eq!((read.0.len(), &read.1), (3, &metadata("7", "t")));
    assert!(read.0[0].contains(&b'a'));
    assert_eq!(read_parts(ContentType::Protobuf, page.chunks(1)).await.unwrap(), read);
    for middle in 0..page.len() {
        let (first, second) = page.split_at(middle);
        let parts = read_parts(ContentType::Protobuf, [first, second]).await;
        assert_eq!(parts.as_ref(), Ok(&read), "{middle}");
    }
}

/// An envelope around these bytes of a list.
fn envelope(list: &[u8]) -> Vec<u8> {
    let mut page = b"k8s\0\x12".to_vec();
    page.push(u8::try_from(list.len()).unwrap());
    page.extend(list);
    page
}

#[tokio::test]
async fn unknown_fields_of_a_protobuf_page_are_skipped() {
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
    let expected = Ok((vec![b"x".to_vec()], metadata("9", "")));
    assert_eq!(read_parts(ContentType::Protobuf, once(&*page)).await, expected);
    assert_eq!(read_parts(ContentType::Protobuf, page.chunks(1)).await, expected);
}

#[tokio::test]
async fn invalid_protobuf_page_is_a_failure() {
    let version = b"\x0a\x03\x12\x019".as_slice();
    let with = |rest: &[u8]| envelope(&[version, rest].concat());
    let mut early = with(b"\x12\x01x");
    early.pop();
    for (page, expected) in [
        (b"".to_vec(), "an incomplete list"),
        (b"k8s\0".to_vec(), "a list without a resourceVersion"),
        (b"{}{}".to_vec(), r#"an object that begins with "{}{}""#),
        (envelope(b""), "a list without a resourceVersion"),
        (early, "an incomplete list"),
        (with(b"\x12\x05x"), "an item longer than its list"),
        (with(&[0xff; 30]), "a list: "),
        (with(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "an item longer than its list"),
        (b"k8s\0\x0a\xff\xff\xff\xff\x0f".to_vec(), "bytes; the limit"),
        (envelope(b"\x0a\x02\x10\x01"), "the metadata of a list"),
    ] {
        let read = read_parts(ContentType::Protobuf, once(&*page)).await;
        let Err(RequestFailure::Encoding(reason)) = read else { panic!("{page:?}: {read:?}") };
        assert!(reason.contains(expected), "{reason}");
    }
}
