//! Bearer tokens, like client-go sends them: a token file, read again as it rotates, takes
//! precedence over a token in the kubeconfig.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;

/// The interval between two reads of a token file. (client-go: a minute, less ten seconds.)
const REREAD_INTERVAL: Duration = Duration::from_secs(50);

/// The agent's bearer token.
#[derive(Clone, Default)]
pub(super) struct Token {
    file: Option<PathBuf>,
    /// The last valid token, and the time of the last read.
    last: Arc<Mutex<(Option<HeaderValue>, Option<Instant>)>>,
}

/// The reason why a token cannot be used. It never quotes the token.
#[derive(Debug)]
pub(super) enum TokenError {
    /// The token of the kubeconfig contains characters that no HTTP header allows.
    Given,
    /// The file cannot be read, or holds no token.
    File(io::Error),
}

impl Token {
    /// Makes a token from a value, a file, or both; with both, the file may be missing.
    pub(super) fn new(given: Option<&str>, file: Option<&Path>) -> Result<Token, TokenError> {
        let given = given.map(|token| bearer(token).ok_or(TokenError::Given)).transpose()?;
        let token = match file.map(read) {
            Some(Ok(token)) => Some(token),
            Some(Err(error)) if given.is_none() => return Err(TokenError::File(error)),
            _ => given,
        };
        let last = Arc::new(Mutex::new((token, Some(Instant::now()))));
        Ok(Token { file: file.map(Into::into), last })
    }

    /// Returns the value of `Authorization`.
    pub(super) fn header(&self, now: Instant) -> Option<HeaderValue> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file
            && last.1.is_none_or(|then| now.saturating_duration_since(then) >= REREAD_INTERVAL)
        {
            // A missing or half-written file keeps the previous token.
            last.0 = read(file).ok().or_else(|| last.0.take());
            last.1 = Some(now);
        }
        last.0.clone()
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let wrong = |reason: &'static str| io::Error::new(io::ErrorKind::InvalidData, reason);
    let text = std::fs::read(path)?;
    let text = String::from_utf8(text).map_err(|_| wrong("it is not text"))?;
    if text.trim().is_empty() {
        return Err(wrong("it is empty"));
    }
    bearer(text.trim()).ok_or_else(|| wrong("it contains characters that no HTTP header allows"))
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sent(token: &Token, after: u64) -> Option<String> {
        let header = token.header(Instant::now() + Duration::from_secs(after));
        header.map(|header| header.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_file_comes_before_the_token_in_the_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, " first\n").unwrap();
        let both = Token::new(Some("given"), Some(&file)).unwrap();
        assert_eq!(sent(&both, 0).as_deref(), Some("Bearer first"));
        assert_eq!(sent(&Token::new(Some("given"), None).unwrap(), 0).unwrap(), "Bearer given");
        assert_eq!(sent(&Token::default(), 0), None);
        let missing = folder.path().join("missing");
        let both = Token::new(Some("given"), Some(&missing)).unwrap();
        assert_eq!(sent(&both, 0).as_deref(), Some("Bearer given"));
        fs::write(&missing, "there").unwrap();
        assert_eq!(sent(&both, 51).as_deref(), Some("Bearer there"));
    }

    #[test]
    fn tokens_that_cannot_be_sent_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert!(matches!(Token::new(None, Some(&file)), Err(TokenError::File(_))));
        for text in [&b"\n"[..], b"a\nb", b"\xff"] {
            fs::write(&file, text).unwrap();
            assert!(matches!(Token::new(None, Some(&file)), Err(TokenError::File(_))), "{text:?}");
        }
        assert!(matches!(Token::new(Some("a\nb"), None), Err(TokenError::Given)));
    }
}
