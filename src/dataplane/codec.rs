//! Encodes and decodes the sets, keys and values of shunt's tables.
//!
//! Each field of a concatenation fills whole registers of four bytes, with trailing zeros.
//! Addresses and ports are in network order, the index of a pool in host order, because that is
//! how the `numgen` expression writes it into its register.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nfnetlink::nft::{
    Counter, DumpedElement, ElementData, Elements, SetField, SetType, TableFamily, TypeOf,
    VERDICTS, Verdict,
};
use shunt_core::model::{Backend, Family, MAX_GONE, Protocol};
use shunt_core::plan::{
    AFFINITY_SIZE, ChainName, Element, Field, FrontendKey, Key, Set, SetValue, SourceRange, Value,
};

/// Returns the table family of an IP family.
pub(crate) fn table_family(family: Family) -> TableFamily {
    match family {
        Family::V4 => TableFamily::Ip,
        Family::V6 => TableFamily::Ip6,
    }
}

/// Bytes of a key or value: at most two IPv6 addresses, protocol and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    bytes: [u8; 40],
    length: usize,
}

impl Bytes {
    fn new() -> Bytes {
        Bytes { bytes: [0; 40], length: 0 }
    }

    fn push<const N: usize>(&mut self, field: [u8; N]) {
        let end = self.length + N;
        if let Some(target) = self.bytes.get_mut(self.length..end) {
            target.copy_from_slice(&field);
            self.length = end.next_multiple_of(4);
        }
    }

    fn push_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.push(v4.octets()),
            IpAddr::V6(v6) => self.push(v6.octets()),
        }
    }

    fn push_frontend(&mut self, key: FrontendKey) {
        let (protocol, port) = match key {
            FrontendKey::Address(address, protocol, port) => {
                self.push_address(address);
                (protocol, port)
            }
            FrontendKey::NodePort(_, protocol, port) => (protocol, port),
        };
        self.push([protocol.number()]);
        self.push(port.to_be_bytes());
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Encodes a key.
pub(super) fn encode_key(key: Key) -> Bytes {
    let mut bytes = Bytes::new();
    match key {
        Key::Frontend(frontend) => bytes.push_frontend(frontend),
        Key::Pool(frontend, index) => {
            bytes.push_frontend(frontend);
            bytes.push(index.to_ne_bytes());
        }
        Key::Source(frontend, range) => {
            bytes.push_frontend(frontend);
            bytes.push_address(range.first);
        }
        Key::Address(address) => bytes.push_address(address),
        Key::Hairpin(address) => {
            bytes.push_address(address);
            bytes.push_address(address);
        }
    }
    bytes
}

/// Encodes the key of a client in the affinity map.
pub(super) fn encode_client(client: IpAddr, key: FrontendKey) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.push_address(client);
    bytes.push_frontend(key);
    bytes
}

/// Encodes the end of a key's range, if the key is a range.
pub(super) fn encode_key_end(key: Key) -> Option<Bytes> {
    let Key::Source(frontend, SourceRange { last, .. }) = key else { return None };
    Some(encode_key(Key::Source(frontend, SourceRange { first: last, last })))
}

/// Encodes a backend.
pub(super) fn encode_backend(backend: Backend) -> Bytes {
    let mut bytes = Bytes::new();
    bytes.push_address(backend.address);
    bytes.push(backend.port.to_be_bytes());
    bytes
}

/// Adds an element, whose counter starts with these numbers.
pub(super) fn push(element: &Element<'_>, counter: Option<Counter>, to: &mut Elements) {
    let (key, end) = (encode_key(element.key), encode_key_end(element.key));
    let (key, end) = (key.as_slice(), end.as_ref().map(Bytes::as_slice));
    let chain: String;
    let backend: Bytes;
    let data = match &element.value {
        None => None,
        Some(Value::Drop) => Some(ElementData::Verdict(Verdict::Drop)),
        Some(Value::Goto(name)) => {
            chain = name.to_string();
            Some(ElementData::Verdict(Verdict::Goto(chain.as_str())))
        }
        Some(Value::Backend(value)) => {
            backend = encode_backend(*value);
            Some(ElementData::Value(backend.as_slice()))
        }
    };
    let comment = element.comment;
    to.add(&DumpedElement {
        key,
        key_end: end,
        data,
        comment,
        counter,
        ..DumpedElement::default()
    });
}

/// A reader of bytes.
struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let padded = N.next_multiple_of(4);
        let (field, rest) = self.0.split_at_checked(padded)?;
        self.0 = rest;
        let (field, padding) = field.split_at_checked(N)?;
        // Padding other than zeros makes another key for the kernel.
        padding.iter().all(|byte| *byte == 0).then(|| field.try_into().ok()).flatten()
    }

    fn address(&mut self, family: Family) -> Option<IpAddr> {
        Some(match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(self.take::<4>()?)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(self.take::<16>()?)),
        })
    }

    fn protocol(&mut self) -> Option<Protocol> {
        let [number] = self.take::<1>()?;
        Protocol::from_number(number)
    }

    fn port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take::<2>()?))
    }
}

/// Decodes a key of one of shunt's sets, with the end of its range in a set of ranges. Returns
/// `None` for a key that shunt would not write.
pub(super) fn decode_key(
    family: Family,
    set: Set,
    bytes: &[u8],
    end: Option<&[u8]>,
) -> Option<Key> {
    if let Some(end) = end.filter(|_| set.has_ranges()) {
        let (first, last) =
            (decode_plain_key(family, set, bytes)?, decode_plain_key(family, set, end)?);
        return match (first, last) {
            (Key::Source(from, first), Key::Source(to, last)) if from == to => {
                Some(Key::Source(from, SourceRange { first: first.first, last: last.last }))
            }
            _ => None,
        };
    }
    decode_plain_key(family, set, bytes)
}

fn decode_plain_key(family: Family, set: Set, bytes: &[u8]) -> Option<Key> {
    let mut reader = ByteReader(bytes);
    let key = match set {
        Set::ClusterIps | Set::ExternalIps | Set::NodeportIps => {
            Key::Address(reader.address(family)?)
        }
        Set::Hairpin => {
            let source = reader.address(family)?;
            Key::Hairpin(reader.address(family).filter(|destination| *destination == source)?)
        }
        _ => {
            let by_address = set.key().contains(&Field::Destination);
            let address = if by_address { Some(reader.address(family)?) } else { None };
            let (protocol, port) = (reader.protocol()?, reader.port()?);
            let frontend = match address {
                Some(address) => FrontendKey::Address(address, protocol, port),
                None => FrontendKey::NodePort(family, protocol, port),
            };
            if set.key().contains(&Field::Index) {
                Key::Pool(frontend, u32::from_ne_bytes(reader.take::<4>()?))
            } else if set.has_ranges() {
                let address = reader.address(family)?;
                Key::Source(frontend, SourceRange { first: address, last: address })
            } else {
                Key::Frontend(frontend)
            }
        }
    };
    reader.0.is_empty().then_some(key)
}

/// Writes the fields of a key; `None` for bytes in the padding or another length.
pub(super) fn key_text(family: Family, set: Set, bytes: &[u8]) -> Option<String> {
    let mut reader = ByteReader(bytes);
    let mut fields = Vec::new();
    for field in set.key() {
        fields.push(match field {
            Field::Source | Field::Destination => reader.address(family)?.to_string(),
            Field::Protocol => u8::from_ne_bytes(reader.take()?).to_string(),
            Field::Port => reader.port()?.to_string(),
            Field::Index => u32::from_ne_bytes(reader.take()?).to_string(),
        });
    }
    reader.0.is_empty().then(|| fields.join(" . "))
}

/// Returns the frontends to which an entry of the affinity map may belong: the frontend of the
/// address or, without one, that of the node port.
pub(super) fn decode_affinity_key(family: Family, bytes: &[u8]) -> Option<[FrontendKey; 2]> {
    let mut reader = ByteReader(bytes);
    let _client = reader.address(family)?;
    let address = reader.address(family)?;
    let (protocol, port) = (reader.protocol()?, reader.port()?);
    Some([
        FrontendKey::Address(address, protocol, port),
        FrontendKey::NodePort(family, protocol, port),
    ])
}

/// Decodes an element of one of shunt's sets. Returns `None` for one that shunt would not write.
pub(super) fn decode<'a>(
    family: Family,
    set: Set,
    element: &DumpedElement<'a>,
) -> Option<Element<'a>> {
    let value = match element.data {
        Some(data) => Some(decode_value(family, data)?),
        None => None,
    };
    let key = decode_key(family, set, element.key, element.key_end)?;
    Some(Element { set, key, value, comment: element.comment })
}

/// Decodes the value of a map element. Returns `None` for a value that shunt would not write.
pub(super) fn decode_value(family: Family, data: ElementData<'_>) -> Option<Value> {
    match data {
        ElementData::Verdict(Verdict::Drop) => Some(Value::Drop),
        ElementData::Verdict(Verdict::Goto(chain)) => ChainName::parse(chain).map(Value::Goto),
        ElementData::Verdict(..) => None,
        ElementData::Value(bytes) => decode_backend(family, bytes).map(Value::Backend),
    }
}

/// Returns nft's number for the type of a field (`include/datatype.h`), and the length in bytes, without
/// padding.
fn field_type(family: Family, field: Field) -> (u32, u8) {
    match (field, family) {
        (Field::Source | Field::Destination, Family::V4) => (7, 4),
        (Field::Source | Field::Destination, Family::V6) => (8, 16),
        (Field::Protocol, _) => (12, 1),
        (Field::Port, _) => (13, 2),
        (Field::Index, _) => (4, 4),
    }
}

/// Returns the type number of a concatenation: six bits per field, the first in the highest place.
fn concatenate(family: Family, fields: &[Field]) -> (u32, u32) {
    fields.iter().fold((0, 0), |(types, length), field| {
        let (type_id, field_length) = field_type(family, *field);
        ((types << 6) | type_id, length + u32::from(field_length).next_multiple_of(4))
    })
}

/// Returns the definition of one of shunt's sets, without the size of a particular table.
pub(super) fn set_type(family: Family, set: Set) -> SetType {
    const POOL_VALUE: &[SetField] = &[SetField::Address, SetField::Port];
    let (key_type, key_length) = concatenate(family, set.key());
    let type_of = match set {
        Set::Endpoints | Set::ShortCircuitEndpoints => Some(TypeOf {
            key: &[SetField::Address, SetField::Protocol, SetField::Port, SetField::Index],
            data: POOL_VALUE,
        }),
        Set::NodeportEndpoints | Set::ShortCircuitNodeportEndpoints => Some(TypeOf {
            key: &[SetField::Protocol, SetField::Port, SetField::Index],
            data: POOL_VALUE,
        }),
        _ => None,
    };
    let data = set.value().map(|value| match value {
        SetValue::Verdict => VERDICTS,
        SetValue::Backend => concatenate(family, &[Field::Destination, Field::Port]),
    });
    let range_fields = set.has_ranges().then(|| {
        let mut lengths = [0; 4];
        for (length, field) in lengths.iter_mut().zip(set.key()) {
            *length = field_type(family, *field).1;
        }
        lengths
    });
    SetType {
        key_type,
        key_length,
        data,
        range_fields,
        learned: set.is_dynamic(),
        expires: false,
        size: set.is_dynamic().then_some(AFFINITY_SIZE),
        counter: set.counts(),
        type_of,
    }
}

/// Returns the definition of the set of gone endpoints.
pub(super) fn gone_set_type(family: Family) -> SetType {
    let (key_type, key_length) = concatenate(family, &[Field::Destination, Field::Port]);
    SetType { expires: true, size: Some(GONE_SIZE), ..SetType::of(key_type, key_length) }
}

/// The size of the set of gone endpoints. Expired elements count until the kernel removes them.
const GONE_SIZE: u32 = 2 * MAX_GONE as u32;

/// Decodes an element of the set of gone endpoints. Returns `None` for a key that shunt would not
/// write.
pub(super) fn decode_backend(family: Family, bytes: &[u8]) -> Option<Backend> {
    let mut reader = ByteReader(bytes);
    let backend = Backend { address: reader.address(family)?, port: reader.port()? };
    reader.0.is_empty().then_some(backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(set: Set, family: Family) -> Key {
        let address: IpAddr = match family {
            Family::V4 => "10.96.0.10".parse().unwrap(),
            Family::V6 => "fd00:96::10".parse().unwrap(),
        };
        let by_address = set.key().contains(&Field::Destination);
        let frontend = if by_address {
            FrontendKey::Address(address, Protocol::Sctp, 443)
        } else {
            FrontendKey::NodePort(family, Protocol::Udp, 30_053)
        };
        match set {
            Set::ClusterIps | Set::ExternalIps | Set::NodeportIps => Key::Address(address),
            Set::Hairpin => Key::Hairpin(address),
            _ if set.key().contains(&Field::Index) => Key::Pool(frontend, 70_000),
            Set::AllowedSources => {
                Key::Source(frontend, SourceRange { first: address, last: address })
            }
            _ => Key::Frontend(frontend),
        }
    }

    #[test]
    fn keys_of_every_set_are_as_long_as_the_set_says_and_are_read_back() {
        for set in Set::ALL.into_iter().filter(|set| !set.is_dynamic()) {
            for family in Family::ALL {
                let key = sample(set, family);
                let bytes = encode_key(key);
                let wanted = set_type(family, set).key_length as usize;
                assert_eq!(bytes.as_slice().len(), wanted, "{set:?} {family}");
                let end = encode_key_end(key);
                let end = end.as_ref().map(Bytes::as_slice);
                assert_eq!(decode_key(family, set, bytes.as_slice(), end), Some(key));
                assert_eq!(decode_key(family, set, &bytes.as_slice()[1..], None), None);
            }
        }
    }

    #[test]
    fn a_key_with_something_in_its_padding_is_another_key() {
        let set = Set::MasqueradeNodeports;
        let key = encode_key(sample(set, Family::V4));
        for place in [3, 7] {
            let mut bytes = key.as_slice().to_vec();
            bytes[place] = 1;
            assert_eq!(decode_key(Family::V4, set, &bytes, None), None);
        }
    }

    #[test]
    fn the_numbers_of_concatenated_types_are_those_of_nft() {
        let endpoints = set_type(Family::V4, Set::Endpoints);
        assert_eq!((endpoints.key_type, endpoints.key_length), (0x001c_c344, 16));
        assert_eq!(endpoints.data, Some((0x1cd, 8)));
        let endpoints = set_type(Family::V6, Set::Endpoints);
        assert_eq!((endpoints.key_type, endpoints.key_length), (0x0020_c344, 28));
    }
}
