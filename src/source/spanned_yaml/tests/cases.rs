//! Files of cases in `tests/fixtures/cases`: paragraphs of YAML, each followed by what becomes of it, in comments that
//! begin with `#>`. `SHUNT_UPDATE_SNAPSHOT` writes these comments anew.

use std::fs;
use std::path::Path;

/// Compares what `says` returns for each case with what the file says.
pub fn check(file: &str, says: impl Fn(&str) -> Vec<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cases").join(file);
    let known = fs::read_to_string(&path).unwrap();
    let update = std::env::var_os("SHUNT_UPDATE_SNAPSHOT").is_some();
    let mut anew = Vec::new();
    for case in known.trim_end().split("\n\n") {
        let (text, _) = case.split_once("\n#>").unwrap_or((case, ""));
        let mut says = says(&format!("{text}\n"));
        if says.is_empty() {
            says.push("nothing".to_owned());
        }
        let found = format!("{text}\n#> {}", says.join("\n#> "));
        assert!(update || found == case, "{found}\ninstead of\n{case}");
        anew.push(found);
    }
    if update {
        fs::write(path, anew.join("\n\n") + "\n").unwrap();
    }
}
