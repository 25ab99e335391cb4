//! The way of each traced packet, from the events of the kernel. Time comes in as an argument.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nfnetlink::nft::{PacketHeader, TraceEvent, TraceStep, Verdict};

use super::table::Marker;
use super::{Packet, Reply, TracePlace};
use crate::dataplane::trace_table::TABLE;

/// How long a packet may have no event before it counts as lost: the kernel needs microseconds.
const QUIET: Duration = Duration::from_secs(1);
/// How long to wait for a reply. A TCP client repeats its SYN after one second.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

impl Reply {
    /// Returns true if the endpoint or a router refuses the connection: a TCP reset, or an ICMP
    /// error.
    pub(super) fn refuses(&self) -> bool {
        self.header.is_reset() || self.header.is_icmp_error()
    }
}

impl Packet {
    fn begun(event: &TraceEvent, header: PacketHeader, now: Instant) -> Packet {
        Packet {
            ids: vec![event.id],
            first: header,
            last: header,
            input: event.input,
            output: None,
            mark: event.mark,
            steps: Vec::new(),
            reply: None,
            place: TracePlace::Begun,
            dropped: None,
            touched: now,
        }
    }

    /// Returns the time at which the outcome is known if nothing else happens.
    fn due(&self) -> Instant {
        let is_answered = self.place == TracePlace::Gone && self.reply.is_some();
        let is_decided = self.dropped.is_some() || is_answered;
        let wait = match self.place {
            _ if is_decided => Duration::ZERO,
            TracePlace::Gone => REPLY_TIMEOUT,
            _ => QUIET,
        };
        self.touched + wait
    }

    /// Returns true if NAT changed the destination.
    pub(super) fn is_translated(&self) -> bool {
        self.first.destination != self.last.destination
    }

    fn follow(&mut self, event: &TraceEvent, marker: Option<Marker>, now: Instant) {
        self.touched = now;
        self.mark = event.mark;
        self.last = event.header.unwrap_or(self.last);
        match marker {
            Some(Marker::Forward) => self.place = self.place.max(TracePlace::Forwarded),
            Some(Marker::Leaves) => (self.place, self.output) = (TracePlace::Gone, event.output),
            Some(Marker::Arrives) => (self.place, self.output) = (TracePlace::Gone, None),
            Some(Marker::Start | Marker::Reply | Marker::Translated) => {}
            None => {
                if matches!(event.verdict, Verdict::Drop | Verdict::Stolen) {
                    self.dropped = Some(event.clone());
                }
                self.steps.push(event.clone());
            }
        }
    }
}

/// The traced packets that have no outcome yet.
#[derive(Debug, Default)]
pub(super) struct Packets(Vec<Packet>);

impl Packets {
    /// Takes an event of the kernel.
    pub(super) fn take(&mut self, event: &TraceEvent, now: Instant) {
        let marker = (event.table == TABLE).then(|| Marker::of(&event.chain)).flatten();
        if event.step == TraceStep::Return {
            return;
        }
        if let Some(packet) = self.0.iter_mut().find(|it| it.ids.contains(&event.id)) {
            return packet.follow(event, marker, now);
        }
        let replied =
            |packet: &&mut Packet| packet.reply.as_ref().is_some_and(|reply| reply.id == event.id);
        if let Some(packet) = self.0.iter_mut().find(replied) {
            let dropped = event.verdict == Verdict::Drop && marker.is_none();
            if let Some(reply) = packet.reply.as_mut().filter(|_| dropped) {
                reply.dropped = Some(event.clone());
            }
            return;
        }
        let Some(header) = event.header else { return };
        match marker {
            Some(Marker::Start) => self.0.push(Packet::begun(event, header, now)),
            Some(Marker::Reply) => self.reply(event.id, header, now),
            // A packet to the node itself loops back as a new one.
            _ => {
                let same = self.0.iter_mut().find(|it| header.is_of_flow(&it.last));
                if let Some(packet) = same {
                    packet.ids.push(event.id);
                    packet.follow(event, marker, now);
                }
            }
        }
    }

    fn reply(&mut self, id: u32, header: PacketHeader, now: Instant) {
        let answers = |packet: &&mut Packet| {
            let is_error =
                header.is_icmp_error() && header.destination.ip() == packet.last.source.ip();
            packet.reply.is_none() && (header.answers(&packet.last) || is_error)
        };
        if let Some(packet) = self.0.iter_mut().find(answers) {
            packet.reply = Some(Reply { id, header, dropped: None });
            packet.touched = now;
        }
    }

    /// Removes and returns the packets whose outcome is known.
    pub(super) fn finished(&mut self, now: Instant) -> Vec<Packet> {
        self.0.extract_if(.., |packet| packet.due() <= now).collect()
    }

    /// Returns where the first packet was sent, as it was seen last.
    pub(super) fn destination(&self) -> Option<SocketAddr> {
        Some(self.0.first()?.last.destination)
    }

    /// Returns when the next outcome is known if nothing else happens.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.iter().map(Packet::due).min()
    }
}

#[cfg(test)]
mod tests {
    use nfnetlink::nft::NfProto;

    use super::*;

    const CLIENT: &str = "10.244.1.7:41733";
    const FRONTEND: &str = "10.96.12.5:80";
    const ENDPOINT: &str = "10.244.7.9:8080";

    fn header(source: &str, destination: &str) -> PacketHeader {
        let parse = |text: &str| text.parse().expect("address:port");
        let (source, destination) = (parse(source), parse(destination));
        PacketHeader { protocol: 6, source, destination, tcp_flags: Some(2), icmp_type: None }
    }

    fn event(id: u32, table: &str, chain: &str, header: Option<PacketHeader>) -> TraceEvent {
        TraceEvent {
            id,
            family: NfProto::Ip,
            table: table.to_owned(),
            chain: chain.to_owned(),
            step: TraceStep::Rule(1),
            verdict: Verdict::Continue,
            mark: 0,
            input: Some(3),
            output: Some(4),
            header,
        }
    }

    /// Returns packets with one that has begun.
    fn begun(now: Instant) -> Packets {
        let mut packets = Packets::default();
        packets.take(&event(7, TABLE, "from-outside", Some(header(CLIENT, FRONTEND))), now);
        packets
    }

    /// The same after translation and forwarding.
    fn gone(now: Instant) -> Packets {
        let mut packets = begun(now);
        packets.take(&event(7, "shunt", "lb-3", None), now);
        packets.take(&event(7, TABLE, "forward", Some(header(CLIENT, ENDPOINT))), now);
        packets.take(&event(7, TABLE, "leave", Some(header("192.0.2.1:9", ENDPOINT))), now);
        packets
    }

    fn only(packets: &mut Packets, now: Instant) -> Packet {
        let mut finished = packets.finished(now);
        assert_eq!(finished.len(), 1, "{packets:?}");
        assert_eq!(packets.next_due(), None);
        finished.remove(0)
    }

    #[test]
    fn unanswered_packet_is_delivered_after_the_timeout() {
        let now = Instant::now();
        let mut packets = gone(now);
        assert_eq!(packets.next_due(), Some(now + REPLY_TIMEOUT));
        let packet = only(&mut packets, now + REPLY_TIMEOUT);
        assert_eq!((packet.place, packet.reply), (TracePlace::Gone, None));
    }

    #[test]
    fn reset_and_icmp_error_are_refusals() {
        let now = Instant::now();
        let reset = PacketHeader { tcp_flags: Some(0x14), ..header(ENDPOINT, "192.0.2.1:9") };
        let error = header("192.0.2.77:0", "192.0.2.1:0");
        let error = PacketHeader { protocol: 1, tcp_flags: None, icmp_type: Some(3), ..error };
        // A router on the same link may tell of a better way.
        let redirect = PacketHeader { icmp_type: Some(5), ..error };
        let mut packets = gone(now);
        packets.take(&event(8, TABLE, "reply-from-outside", Some(redirect)), now);
        assert_eq!(packets.finished(now), []);
        for reply in [reset, error] {
            let mut packets = gone(now);
            packets.take(&event(8, TABLE, "reply-from-outside", Some(reply)), now);
            assert!(only(&mut packets, now).reply.is_some_and(|reply| reply.refuses()));
        }
    }

    #[test]
    fn packet_without_an_end_is_lost_where_it_was_seen_last() {
        let now = Instant::now();
        let mut packets = begun(now);
        assert_eq!(packets.finished(now + QUIET / 2), []);
        assert_eq!(only(&mut packets, now + QUIET).place, TracePlace::Begun);
        let mut packets = begun(now);
        packets.take(&event(7, TABLE, "forward", None), now);
        assert_eq!(only(&mut packets, now + QUIET).place, TracePlace::Forwarded);
    }
}
