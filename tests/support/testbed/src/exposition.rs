//! Reading what Prometheus reads: the text format 0.0.4. Strict, so that what is only nearly right is an
//! error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// Metrics as they were scraped.
#[derive(Debug, Clone, PartialEq)]
pub struct Exposition {
    /// The families, in their order.
    pub families: Vec<MetricFamily>,
}

/// All metrics of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricFamily {
    /// Its name, as `# TYPE` says it.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Its samples, in their order.
    pub samples: Vec<Sample>,
}

/// A line with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, which may have a suffix behind that of the family.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Exposition {
    /// Reads the text format 0.0.4.
    pub fn parse(text: &str) -> Result<Exposition> {
        ensure!(text.is_empty() || text.ends_with('\n'), "the last line has no end");
        let mut families: Vec<MetricFamily> = Vec::new();
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let at = || format!("line {}: {line}", number + 1);
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').with_context(at)?;
                ensure!(!help.is_empty() && !help.contains('\\'), "{}", at());
                let kind = lines
                    .next()
                    .and_then(|(_, line)| line.strip_prefix("# TYPE "))
                    .and_then(|rest| rest.strip_prefix(name)?.strip_prefix(' '))
                    .with_context(|| format!("{}: no type follows", at()))?;
                ensure!(["counter", "gauge", "histogram"].contains(&kind), "{}: {kind}", at());
                ensure!(families.iter().all(|f| f.name != name), "{}: a second time", at());
                let (name, kind) = (name.to_owned(), kind.to_owned());
                families.push(MetricFamily { name, kind, samples: Vec::new() });
            } else {
                let sample = Sample::parse(line).with_context(at)?;
                let family = families.last_mut().with_context(at)?;
                family.samples.push(sample);
            }
        }
        for family in &families {
            family.check().with_context(|| family.name.clone())?;
        }
        Ok(Exposition { families })
    }

    /// The value of the sample with this name and exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let labels: BTreeMap<String, String> = labels.iter().map(owned).collect();
        let mut samples = self.families.iter().flat_map(|family| &family.samples);
        samples.find(|s| s.name == name && s.labels == labels).map(|sample| sample.value)
    }

    /// One line for each metric, in order: name, type, labels, and the bounds of a histogram's
    /// buckets.
    pub fn outline(&self) -> String {
        let line = |family: &MetricFamily| {
            let samples = family.samples.iter();
            let labels = |sample: &Sample| sample.labels.keys().cloned().collect::<Vec<_>>();
            let mut labels: BTreeSet<String> = samples.clone().flat_map(labels).collect();
            labels.remove("le");
            let mut bounds: Vec<&str> = Vec::new();
            for bound in samples.filter_map(|sample| sample.labels.get("le")) {
                if !bounds.contains(&&**bound) {
                    bounds.push(bound);
                }
            }
            let MetricFamily { name, kind, .. } = family;
            let labels = labels.into_iter().collect::<Vec<_>>().join(",");
            format!("{name} {kind} {{{labels}}} {}", bounds.join(" ")).trim_end().to_owned() + "\n"
        };
        self.families.iter().map(line).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl MetricFamily {
    fn check(&self) -> Result<()> {
        ensure!(is_name(&self.name), "not a name");
        ensure!(!self.samples.is_empty(), "no samples");
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            let Sample { name, labels, value } = sample;
            ensure!(seen.insert((name, labels)), "{name} {labels:?} a second time");
            let suffix = name.strip_prefix(&self.name).context("a sample of another family")?;
            let (suffixes, least): (&[&str], _) = match self.kind.as_str() {
                "gauge" => (&[""], f64::NEG_INFINITY),
                "counter" => (&[""], 0.0),
                _ => (&["_bucket", "_sum", "_count"], 0.0),
            };
            ensure!(suffixes.contains(&suffix), "{name} is not a sample of a {}", self.kind);
            ensure!(*value >= least, "{name} {labels:?} is {value}");
        }
        if self.kind == "histogram" { self.check_buckets() } else { Ok(()) }
    }

    fn check_buckets(&self) -> Result<()> {
        let of = |suffix: &str| {
            let name = format!("{}{suffix}", self.name);
            self.samples.iter().filter(move |sample| sample.name == name)
        };
        for count in of("_count") {
            ensure!(of("_sum").any(|sum| sum.labels == count.labels), "no sum");
            let (mut below, mut least) = (f64::NEG_INFINITY, 0.0);
            for bucket in of("_bucket") {
                let mut labels = bucket.labels.clone();
                let bound: f64 = labels.remove("le").context("a bucket without bound")?.parse()?;
                if labels == count.labels {
                    ensure!(bound > below && bucket.value >= least, "buckets are out of order");
                    (below, least) = (bound, bucket.value);
                }
            }
            ensure!(below == f64::INFINITY && least == count.value, "the last bucket is not all");
        }
        Ok(())
    }
}

impl Sample {
    /// `name{label="value",…} value`, where the braces may be missing.
    fn parse(line: &str) -> Result<Sample> {
        let (series, value) = line.rsplit_once(' ').context("no value")?;
        let value = value.parse()?;
        let Some((name, rest)) = series.split_once('{') else {
            ensure!(is_name(series), "{series:?} is not a name");
            return Ok(Sample { name: series.to_owned(), labels: BTreeMap::new(), value });
        };
        ensure!(is_name(name), "{name:?} is not a name");
        let mut rest = rest;
        let mut labels = BTreeMap::new();
        loop {
            let (label, quoted) = rest.split_once("=\"").context("a label without value")?;
            ensure!(is_name(label) && !label.contains(':'), "{label:?} is not a label");
            let (content, behind) = unquote(quoted)?;
            ensure!(labels.insert(label.to_owned(), content).is_none(), "{label} twice");
            match behind.strip_prefix(',') {
                Some(next) => rest = next,
                None if behind == "}" => {
                    return Ok(Sample { name: name.to_owned(), labels, value });
                }
                None => bail!("{behind:?} behind a label"),
            }
        }
    }
}

/// The text up to the closing quote, and what follows.
fn unquote(text: &str) -> Result<(String, &str)> {
    let mut content = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((content, &text[at + 1..])),
            '\\' => content.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                other => bail!("{other:?} is not an escape"),
            }),
            c => content.push(c),
        }
    }
    bail!("no closing quote")
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTOGRAM: &str = "# HELP h Times.\n# TYPE h histogram\n\
        h_sum{a=\"x\\\"y\"} 1.5\nh_count{a=\"x\\\"y\"} 2\n\
        h_bucket{a=\"x\\\"y\",le=\"1\"} 1\nh_bucket{a=\"x\\\"y\",le=\"+Inf\"} 2\n";

    #[test]
    fn what_is_nearly_right_is_refused() {
        let counter = "# HELP c_total C.\n# TYPE c_total counter\nc_total 3\n";
        assert!(Exposition::parse(counter).is_ok() && Exposition::parse(HISTOGRAM).is_ok());
        for wrong in [
            counter.replace(" 3", " -3"),
            counter.replace(" 3", " three"),
            counter.replace("counter", "count"),
            counter.replace("\nc_total 3", "\nc 3"),
            counter.replace("\nc_total 3", ""),
            counter.replace("# HELP c_total C.\n", ""),
            counter.repeat(2),
            format!("{counter}c_total 4\n"),
            counter.trim_end().to_owned(),
            HISTOGRAM.replace("+Inf\"} 2", "+Inf\"} 3"),
            HISTOGRAM.replace("le=\"1\"} 1", "le=\"1\"} 3"),
            HISTOGRAM.replace("\\\"", "\""),
        ] {
            assert!(Exposition::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
