//! The `conntrack` section of the configuration in a network namespace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use shunt::flows::sysctl;
use shunt_testbed::Netns;

#[test]
fn sysctls_are_set_where_the_namespace_may_and_the_rest_is_no_error() -> Result<()> {
    let net = Path::new("/proc/sys/net");
    Netns::new()?.run(|| {
        // In a user namespace not even root may read some of them: `None` then.
        let values = || {
            use sysctl::Sysctl::*;
            [Max, Buckets, TcpTimeoutEstablished, TcpBeLiberal, UdpTimeout, UdpTimeoutStream]
                .map(|sysctl| Some(fs::read_to_string(sysctl.file(net)).ok()?.trim().to_owned()))
        };
        let before = values();
        let settings = sysctl::Settings {
            // More than any machine has: outside of the first namespace it is refused.
            max_per_core: u32::MAX,
            min: 0,
            tcp_established_timeout: Duration::from_secs(4321),
            tcp_close_wait_timeout: Duration::ZERO,
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(17),
            udp_stream_timeout: Duration::ZERO,
        };
        sysctl::apply(&settings, net);
        let after = values();
        assert_eq!(after[..2], before[..2]);
        assert_eq!(after[2..5], ["4321", "1", "17"].map(|value| Some(value.to_owned())));
        assert_eq!(after[5], before[5]);
        Ok(())
    })
}
