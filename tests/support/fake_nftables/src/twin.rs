//! The fake held against the kernel: the same transactions, the same answers, the same listings.

use nfnetlink::nft::{self, DumpedRule, Error, FinishedBatch, Kernel, TableFamily};

use crate::{Listing, Socket};

/// The tables that tests make.
const TABLES: [&str; 2] = [shunt_core::plan::TABLE, "other"];

/// Sends the kernel what the fake has answered already.
///
/// # Panics
/// If they differ in anything.
pub(crate) fn compare(
    kernel: &mut nft::Socket,
    fake: &mut Socket,
    batch: &FinishedBatch,
    answer: &Result<(), Error>,
) {
    let by_kernel = kernel.commit(batch);
    assert_eq!(plain(answer), plain(&by_kernel), "the fake's answer, and the kernel's");
    let generation = |kernel: &mut dyn Kernel| kernel.generation().map(|g| g.id).ok();
    assert_eq!(generation(fake), generation(kernel), "the fake's generation, and the kernel's");
    for family in [TableFamily::Ip, TableFamily::Ip6] {
        for table in TABLES {
            let list = |kernel: &mut dyn Kernel| Listing::of(kernel, family, table);
            // The fake has no errors to list.
            let (mut fake, mut kernel) = (list(fake).ok().flatten(), list(kernel).ok().flatten());
            let rules = |listing: &mut Option<Listing>| {
                listing.as_mut().map(|listing| std::mem::take(&mut listing.rules))
            };
            let (planned, found) = (rules(&mut fake), rules(&mut kernel));
            assert_eq!(fake, kernel, "the fake's {family} {table}, and the kernel's");
            // But for their handles.
            let content = |rules: Option<Vec<DumpedRule>>| -> Vec<_> {
                let rules = rules.unwrap_or_default().into_iter();
                rules.map(|rule| (rule.chain, rule.comment, rule.exprs)).collect()
            };
            assert_eq!(content(planned), content(found), "rules of {family} {table}");
        }
    }
}

/// The answer as a text, the kernel's own words left out: they come and go with its versions.
fn plain(answer: &Result<(), Error>) -> String {
    match answer {
        Ok(()) => "taken".to_owned(),
        Err(Error::Refused(refusals)) => {
            let plain = refusals.iter().map(|refusal| {
                let mut refusal = refusal.clone();
                refusal.explanation = None;
                format!("\n  {refusal}")
            });
            plain.collect()
        }
        Err(error) => error.to_string(),
    }
}
