//! The text format 0.0.4 of Prometheus, the only one of kube-proxy. The library writes OpenMetrics 1.0,
//! which differs in the names of counter families.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// Writes all metrics of a registry.
pub(super) fn exposition(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing into a String fails only if the encoding of a metric does, and these encode.
    let _ = encode_registry(&mut text, registry);
    classic(&text)
}

/// Converts OpenMetrics to the text format 0.0.4. There a counter family has the name of its
/// sample, and whole bounds of buckets have no fraction, as Go writes them.
fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut put = |line: &str, suffix: &str, rest: &str| {
        text.extend([line, suffix, rest, "\n"]);
    };
    // The line with the type comes after the help.
    let mut help = "";
    for line in open_metrics.lines() {
        if line.starts_with("# HELP ") {
            help = line;
        } else if let Some(name) =
            line.strip_suffix(" counter").filter(|l| l.starts_with("# TYPE "))
        {
            // "# HELP" is as long as "# TYPE".
            let (head, rest) = help.split_at(name.len().min(help.len()));
            put(head, "_total", rest);
            put(name, "_total", " counter");
        } else if line.starts_with("# TYPE ") {
            put(help, "", "");
            put(line, "", "");
        } else if let Some((start, rest)) = whole_bound(line) {
            put(start, "", rest);
        } else {
            put(line, "", "");
        }
    }
    text
}

/// Returns the parts of a bucket's line before and behind the fraction `.0` of its bound.
fn whole_bound(line: &str) -> Option<(&str, &str)> {
    const BOUND: &str = "_bucket{le=\"";
    let bound = line.find(BOUND)? + BOUND.len();
    let end = bound + line[bound..].find('"')?;
    Some((line[..end].strip_suffix(".0")?, &line[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples() {
        let open_metrics = "# HELP a_changes Changes.\n\
                            # TYPE a_changes counter\n\
                            a_changes_total 3\n\
                            # HELP b_total A gauge in spite of its name.\n\
                            # TYPE b_total gauge\n\
                            b_total{ip_family=\"IPv4\"} 2\n\
                            # HELP c_seconds Times.\n\
                            # TYPE c_seconds histogram\n\
                            c_seconds_sum 0.5\n\
                            c_seconds_bucket{le=\"0.5\"} 1\n\
                            c_seconds_bucket{le=\"10.0\",a=\"1.0\"} 1\n\
                            c_seconds_bucket{le=\"+Inf\"} 1\n";
        let expected = "# HELP a_changes_total Changes.\n\
                        # TYPE a_changes_total counter\n\
                        a_changes_total 3\n\
                        # HELP b_total A gauge in spite of its name.\n\
                        # TYPE b_total gauge\n\
                        b_total{ip_family=\"IPv4\"} 2\n\
                        # HELP c_seconds Times.\n\
                        # TYPE c_seconds histogram\n\
                        c_seconds_sum 0.5\n\
                        c_seconds_bucket{le=\"0.5\"} 1\n\
                        c_seconds_bucket{le=\"10\",a=\"1.0\"} 1\n\
                        c_seconds_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(classic(open_metrics), expected);
    }
}
