//! `docs/explain.md` lists the codes of `shunt explain`.

use shunt_core::explain::Code;

#[test]
fn reference_has_every_code_in_order() {
    let codes = include_str!("../../docs/explain.md").split_once("\n## Codes\n").unwrap().1;
    let rows = codes.lines().filter_map(|line| {
        let (code, meaning) = line.strip_prefix("- `")?.split_once("`: ")?;
        Some(code).filter(|_| !meaning.is_empty())
    });
    let expected = Code::ALL.iter().map(|code| code.as_str());
    assert_eq!(rows.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}
