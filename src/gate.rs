//! The release gate: what a model needs besides true files before people may use it.
//!
//! Both a rename into models/ and the command line come through here, so no path goes around it.

use serde_json::Value;

use crate::check::Candidate;
use crate::error::Result;

const MODEL_CARD: &str = "MODEL_CARD.md";
const LEDGER: &str = "ledger.json";
const EVALUATION: &str = "evals/summary.json";

/// Adds every reason why the release may not be published.
pub fn check_release(candidate: &Candidate<'_>, problems: &mut Vec<String>) -> Result<()> {
    match candidate.files.get(MODEL_CARD) {
        None => problems.push(format!("{MODEL_CARD}: missing")),
        Some(facts) if facts.size_bytes == 0 => problems.push(format!("{MODEL_CARD}: empty")),
        Some(_) => {}
    }
    if let Some(bytes) = candidate.json_bytes(LEDGER, problems)? {
        check_ledger(&bytes, problems);
    }
    if let Some(bytes) = candidate.json_bytes(EVALUATION, problems)?
        && !matches!(serde_json::from_slice(&bytes), Ok(Value::Object(_)))
    {
        problems.push(format!("{EVALUATION}: not a JSON object"));
    }
    Ok(())
}

/// Every source of the training data must allow training, and none may be revoked.
fn check_ledger(bytes: &[u8], problems: &mut Vec<String>) {
    let Ok(Value::Array(rows)) = serde_json::from_slice(bytes) else {
        problems.push(format!("{LEDGER}: not a JSON array"));
        return;
    };
    if rows.is_empty() {
        problems.push(format!("{LEDGER}: lists no source"));
    }
    for (at, row) in rows.iter().enumerate() {
        let allowed =
            row["allowed_uses"].as_array().is_some_and(|uses| uses.iter().any(|used| used == "train"));
        if !allowed {
            problems.push(format!("{LEDGER}: $[{at}].allowed_uses: does not hold \"train\""));
        }
        // A date, a reason or `true` all revoke; only absence, null and false do not.
        if !matches!(row.get("revoked"), None | Some(Value::Null | Value::Bool(false))) {
            problems.push(format!("{LEDGER}: $[{at}].revoked: the source was revoked"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger_problems(text: &str) -> usize {
        let mut problems = Vec::new();
        check_ledger(text.as_bytes(), &mut problems);
        problems.len()
    }

    #[test]
    fn ledger_rows_must_allow_training() {
        assert_eq!(ledger_problems(r#"[{"allowed_uses": ["train", "eval"]}]"#), 0);
        assert_eq!(ledger_problems(r#"[{"allowed_uses": ["train"], "revoked": false}]"#), 0);
        for bad in [
            "[]",
            "{}",
            "nonsense",
            r#"[{}]"#,
            r#"[{"allowed_uses": ["eval"]}]"#,
            r#"[{"allowed_uses": ["train"], "revoked": true}]"#,
            r#"[{"allowed_uses": ["train"], "revoked": "2026-01-01"}]"#,
        ] {
            assert_eq!(ledger_problems(bad), 1, "{bad}");
        }
    }
}
