//! What explains a failed test afterwards: the packets that a namespace has seen, its rules and its
//! connections.

use std::env;
use std::fs::{self, File};
use std::io::{BufWriter, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};

use crate::netns::leashed;

/// The folder for it; without this variable none is collected.
const VARIABLE: &str = "SHUNT_LAB_EVIDENCE";

/// Bytes that the kernel may keep for us, packets with what belongs to them. What comes when they are
/// used up is lost.
const CAPTURED: usize = 8 << 20;

/// Bytes of a packet that are kept.
const SNAPPED: usize = 256;

/// The head of a file of captured Ethernet frames, with times in nanoseconds: see
/// <https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/>.
const PCAP_HEAD: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, SNAPPED as u32, 1];

/// The evidence of one namespace, written when this is dropped in a test that panics.
pub(crate) struct Evidence {
    folder: PathBuf,
    name: String,
    netns: Arc<OwnedFd>,
    /// Sees every packet of the namespace. Nobody reads from it until somebody wants to know.
    packets: OwnedFd,
}

/// A socket for the packets of this thread's namespace, if evidence is to be collected there.
pub(crate) fn listen() -> Option<OwnedFd> {
    env::var_os(VARIABLE)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let packets = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).ok()?;
    // As an ordinary user it has what the system allows.
    let _ = setsockopt(&packets, sockopt::RcvBufForce, &CAPTURED);
    let _ = setsockopt(&packets, sockopt::ReceiveTimestampns, &true);
    Some(packets)
}

impl Evidence {
    /// For the namespace of this name, in which `packets` was made by [`listen`].
    pub(crate) fn new(name: &str, netns: Arc<OwnedFd>, packets: OwnedFd) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::var_os(VARIABLE)?.into();
        Some(Self { folder, name: format!("{count:03}-{name}"), netns, packets })
    }

    fn write(&self) -> std::io::Result<()> {
        let test = thread::current().name().unwrap_or("unnamed").replace("::", ".");
        let folder = self.folder.join(test);
        fs::create_dir_all(&folder)?;
        let file = |suffix: &str| folder.join(format!("{}.{suffix}", self.name));
        self.write_packets(&file("pcap"))?;
        for (suffix, program, arguments) in [
            ("nft", "nft", &["-a", "list", "ruleset"][..]),
            ("conntrack", "conntrack", &["-L"]),
            ("conntrack6", "conntrack", &["-L", "-f", "ipv6"]),
        ] {
            let output =
                leashed(program, Some(Arc::clone(&self.netns))).args(arguments).output()?;
            fs::write(file(suffix), output.stdout)?;
        }
        Ok(())
    }

    fn write_packets(&self, file: &Path) -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(file)?);
        for word in PCAP_HEAD {
            file.write_all(&word.to_ne_bytes())?;
        }
        let mut buffer = [0; SNAPPED];
        let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
        loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            // With MSG_TRUNC the length is that of the packet, not of what there was room for.
            let message = recvmsg::<()>(
                self.packets.as_raw_fd(),
                &mut parts,
                Some(&mut space),
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC,
            );
            let Ok(message) = message else { break };
            let time = message.cmsgs().ok().and_then(|mut controls| {
                controls.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                    _ => None,
                })
            });
            let (time, length) = (time.unwrap_or_default(), message.bytes);
            let kept = length.min(SNAPPED);
            let head = [time.as_secs() as u32, time.subsec_nanos(), kept as u32, length as u32];
            for word in head {
                file.write_all(&word.to_ne_bytes())?;
            }
            file.write_all(&buffer[..kept])?;
        }
        file.flush()
    }
}

impl Drop for Evidence {
    #[allow(clippy::print_stderr, reason = "the harness shows stderr of a failed test only")]
    fn drop(&mut self) {
        if thread::panicking()
            && let Err(error) = self.write()
        {
            eprintln!("no evidence of {}: {error}", self.name);
        }
    }
}
