//! Objects `ct timeout`, and rules that refer to them.

use anyhow::Result;
use nfnetlink::Family;
use nfnetlink::nft::{Batch, DumpedTimeouts, Expr, Kernel, Socket, rule_text};
use shunt_testbed::Netns;

const SECONDS: [u32; 11] = [1, 60, 86_400, 120, 3_600, 30, 120, 10, 120, 300, 300];

#[test]
fn nft_and_this_crate_read_what_the_other_writes() -> Result<()> {
    let netns = Netns::new()?;
    netns.nft(
        "table ip other { ct timeout more { protocol tcp; l3proto ip; policy = { close : 7 }; }
        }
        table ip t {
            ct timeout theirs { protocol tcp; l3proto ip; policy = { syn_sent : 1, close : 7 }; }
            ct timeout datagrams { protocol udp; l3proto ip; policy = { unreplied : 1 }; }
            counter packets_seen {}
            chain c {
                meta l4proto tcp tcp flags & (fin|syn|rst|ack) == syn ct timeout set \"theirs\"
                counter name packets_seen
            }
        }",
    )?;
    netns.run(|| {
        let mut socket = Socket::open()?;
        let [theirs] = &socket.timeouts(Family::Ip, "t")?[..] else { panic!("not one object") };
        assert_eq!((theirs.name.as_str(), theirs.seconds[0], theirs.seconds[7]), ("theirs", 1, 7));
        assert_eq!(theirs.seconds[1], 60, "the sysctl of a new namespace");
        let texts = |socket: &mut Socket| -> Result<Vec<String>> {
            let rules = socket.rules(Family::Ip, "t")?;
            Ok(rules.iter().map(|rule| rule_text(Family::Ip, &rule.exprs)).collect())
        };
        let rule =
            "meta l4proto tcp tcp flags & (fin|syn|rst|ack) == syn ct timeout set \"theirs\"";
        assert_eq!(texts(&mut socket)?, [rule, "(objref)"]);

        let mut batch = Batch::new(None);
        batch.add_tcp_timeouts(Family::Ip, "t", "ours", &SECONDS);
        batch.add_rule(Family::Ip, "t", "c", &[Expr::timeouts("ours")], None);
        socket.commit(&batch.finish())?;
        let listed = socket.rules(Family::Ip, "t")?;
        assert_eq!(listed.last().expect("a rule").exprs, [Expr::timeouts("ours")]);
        let ours = DumpedTimeouts { name: "ours".to_owned(), seconds: SECONDS };
        assert!(socket.timeouts(Family::Ip, "t")?.contains(&ours));
        assert_eq!(socket.timeouts(Family::Ip6, "t").unwrap_or_default(), []);
        assert_eq!(texts(&mut socket)?.last().map(String::as_str), Some("ct timeout set \"ours\""));
        Ok(())
    })?;
    let listed = netns.output("nft", &["list", "table", "ip", "t"])?;
    assert!(listed.contains("ct timeout ours"), "{listed}");
    Ok(())
}
