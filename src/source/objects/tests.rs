//! What no manifest can say; see `manifests::tests` for all the rest.

use shunt_fake_apiserver::{Kind as FakeKind, protobuf};

use super::*;

#[test]
fn annotation_that_is_not_utf8_costs_nothing() {
    let json = r#"{"metadata": {"name": "a", "annotations": {"shunt.dev/weight": "7", "x": "?"}},
        "addressType": "IPv4"}"#;
    let mut message =
        protobuf::object(FakeKind::EndpointSlice, &serde_json::from_str(json).unwrap());
    let value = message.iter().rposition(|byte| *byte == b'?').unwrap();
    message[value] = 0xff;
    let message = Encoded::Protobuf(message.into());
    let converted = convert(Kind::EndpointSlice, &message, &mut Names::new()).unwrap();
    assert!(matches!(converted.change, Some(Change::Slice(slice)) if slice.weight == Some(7)));
}

#[test]
fn invalid_service_is_ignored_with_its_first_error() {
    let json = r#"{"metadata": {"name": "a"}, "spec": {"clusterIP": "x"}}"#;
    let converted = convert(Kind::Service, &Encoded::Json(json), &mut Names::new()).unwrap();
    let Some(Change::ServiceIgnored(_, Ignored::Invalid(reason))) = converted.change else {
        panic!("{:?}", converted.change);
    };
    assert!(reason.contains("spec.clusterIP = x: not an IP address"), "{reason}");
}
