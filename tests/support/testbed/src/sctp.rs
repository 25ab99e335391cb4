//! As much of SCTP as it takes to be answered: the first two packets of its handshake, on raw
//! sockets, because few test machines have the protocol in their kernel.

pub(crate) const INIT: u8 = 1;
pub(crate) const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;

/// A packet with one chunk, INIT or INIT ACK.
pub(crate) struct Packet {
    pub(crate) kind: u8,
    /// Source and destination.
    pub(crate) ports: [u16; 2],
    /// The tag that the receiver has asked for; 0 as long as it has not spoken. Connection tracking insists.
    pub(crate) verification: u32,
    /// The tag that every answer must have.
    pub(crate) tag: u32,
    /// What a server has to say.
    pub(crate) cookie: Vec<u8>,
}

impl Packet {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = self.cookie.len() as u16 + 4;
        let mut packet = Vec::new();
        packet.extend(self.ports.map(u16::to_be_bytes).concat());
        packet.extend(self.verification.to_be_bytes());
        packet.extend([0, 0, 0, 0, self.kind, 0]); // checksum
        packet.extend((20 + if self.cookie.is_empty() { 0 } else { length }).to_be_bytes());
        packet.extend(self.tag.to_be_bytes());
        // Receive window, streams out and in, first sequence number.
        packet.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        if !self.cookie.is_empty() {
            packet.extend([STATE_COOKIE, length].map(u16::to_be_bytes).concat());
            packet.extend(&self.cookie);
        }
        packet.resize(packet.len().next_multiple_of(4), 0);
        let checksum = crc32c(&packet);
        packet[8..12].copy_from_slice(&checksum.to_le_bytes());
        packet
    }

    /// Reads a packet whose checksum is right, as every receiver on the way, also the kernel's NAT,
    /// demands.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let mut zeroed = packet.to_vec();
        zeroed.get_mut(8..12)?.fill(0);
        let cookie = match be16(packet, 32) {
            Some(STATE_COOKIE) => packet.get(36..32 + usize::from(be16(packet, 34)?))?,
            _ => &[],
        };
        let is_intact = packet[8..12] == crc32c(&zeroed).to_le_bytes();
        is_intact.then_some(Self {
            kind: *packet.get(12)?,
            ports: ports(packet)?,
            verification: be32(packet, 4)?,
            tag: be32(packet, 16)?,
            cookie: cookie.to_vec(),
        })
    }
}

/// Source port and destination port of any packet, even one cut short by an ICMP error.
pub(crate) fn ports(packet: &[u8]) -> Option<[u16; 2]> {
    Some([be16(packet, 0)?, be16(packet, 2)?])
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)))
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
