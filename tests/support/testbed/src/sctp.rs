//! As much of SCTP as it takes to be answered: the first two packets of its handshake, on raw
//! sockets, because few test machines have the protocol in their kernel.

/// The start of an association: who asks whom.
#[derive(Clone, Copy)]
pub(crate) struct Init {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// Every packet of the answer carries this tag; connection tracking insists.
    pub(crate) tag: u32,
}

/// The answer to an [`Init`]: `cookie` is what the server has to say.
pub(crate) struct InitAck {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    /// The tag of the `Init` it answers.
    pub(crate) tag: u32,
    pub(crate) cookie: Vec<u8>,
}

const COMMON_HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
/// Tag, receive window, streams out and in, first sequence number.
const INIT_FIELDS: usize = 16;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;

impl Init {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // The tag of the header is the one the receiver asked for; it has not spoken yet.
        packet(self.source_port, self.destination_port, 0, INIT, self.tag, &[])
    }

    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let chunk = Chunk::of(packet, INIT)?;
        Some(Self {
            source_port: chunk.source_port,
            destination_port: chunk.destination_port,
            tag: chunk.tag,
        })
    }
}

impl InitAck {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut parameter = Vec::new();
        parameter.extend(STATE_COOKIE.to_be_bytes());
        parameter.extend((4 + self.cookie.len() as u16).to_be_bytes());
        parameter.extend(&self.cookie);
        // The client does not answer this, so the server's own tag may be any.
        packet(self.source_port, self.destination_port, self.tag, INIT_ACK, 1, &parameter)
    }

    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let chunk = Chunk::of(packet, INIT_ACK)?;
        let length = usize::from(be16(chunk.parameters, 2)?);
        if be16(chunk.parameters, 0)? != STATE_COOKIE {
            return None;
        }
        Some(Self {
            source_port: chunk.source_port,
            destination_port: chunk.destination_port,
            tag: be32(packet, 4)?,
            cookie: chunk.parameters.get(4..length)?.to_vec(),
        })
    }
}

/// Source port and destination port of any SCTP packet, even one cut short by an ICMP error.
pub(crate) fn ports(packet: &[u8]) -> Option<(u16, u16)> {
    Some((be16(packet, 0)?, be16(packet, 2)?))
}

struct Chunk<'a> {
    source_port: u16,
    destination_port: u16,
    tag: u32,
    parameters: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// The first chunk of an intact packet, if it is of this type.
    fn of(packet: &'a [u8], chunk_type: u8) -> Option<Self> {
        if *packet.get(COMMON_HEADER)? != chunk_type || !intact(packet) {
            return None;
        }
        Some(Self {
            source_port: be16(packet, 0)?,
            destination_port: be16(packet, 2)?,
            tag: be32(packet, COMMON_HEADER + CHUNK_HEADER)?,
            parameters: packet.get(COMMON_HEADER + CHUNK_HEADER + INIT_FIELDS..)?,
        })
    }
}

/// A packet with one chunk, INIT or INIT ACK.
fn packet(
    source_port: u16,
    destination_port: u16,
    verification_tag: u32,
    chunk_type: u8,
    initiate_tag: u32,
    parameters: &[u8],
) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(source_port.to_be_bytes());
    packet.extend(destination_port.to_be_bytes());
    packet.extend(verification_tag.to_be_bytes());
    packet.extend([0; 4]); // checksum
    packet.extend([chunk_type, 0]);
    packet.extend(((CHUNK_HEADER + INIT_FIELDS + parameters.len()) as u16).to_be_bytes());
    packet.extend(initiate_tag.to_be_bytes());
    packet.extend(65_536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1_u32.to_be_bytes());
    packet.extend(parameters);
    packet.resize(packet.len().next_multiple_of(4), 0);
    let checksum = crc32c(&packet);
    packet[8..COMMON_HEADER].copy_from_slice(&checksum.to_le_bytes());
    packet
}

/// Whether the checksum is right, as every receiver on the way, also the kernel's NAT, demands.
fn intact(packet: &[u8]) -> bool {
    let mut zeroed = packet.to_vec();
    zeroed[8..COMMON_HEADER].fill(0);
    packet[8..COMMON_HEADER] == crc32c(&zeroed).to_le_bytes()
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)))
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
