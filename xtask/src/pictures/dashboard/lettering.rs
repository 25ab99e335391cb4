//! The room that letters take.

/// Returns the width of a text in a wide sans-serif font; most fonts need less.
pub(super) fn width(text: &str, size: u32) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | '\'' => 0.28,
        ' ' | ',' | '.' | ':' | '/' | '(' | ')' | '-' => 0.36,
        'f' | 'r' | 't' => 0.41,
        'm' | 'w' | 'M' | 'W' | '%' | '…' => 1.0,
        'A'..='Z' | '0'..='9' => 0.69,
        _ => 0.62,
    };
    text.chars().map(of).sum::<f64>() * f64::from(size)
}

/// Breaks a text into lines of this width. What does not fit into the last line is left out.
pub(super) fn wrapped(text: &str, size: u32, room: f64, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_full = lines.len() == most;
        match lines.last_mut() {
            Some(line) if is_full || width(&format!("{line} {word}"), size) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(|line| shortened(&line, size, room)).collect()
}

/// Leaves out the end of a text that needs more than this room.
pub(super) fn shortened(text: &str, size: u32, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut kept: String = text.to_owned();
    while !kept.is_empty() && width(&kept, size) + f64::from(size) > room {
        kept.pop();
    }
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_not_wider_than_their_room() {
        let text = "From the change of a pod to the kernel, as kube-proxy measures it";
        for (room, most) in [(80.0, 1), (80.0, 3), (200.0, 2), (2000.0, 2)] {
            let lines = wrapped(text, 11, room, most);
            assert!(!lines.is_empty() && lines.len() <= most, "{lines:?}");
            assert!(lines.iter().all(|line| width(line, 11) <= room), "{lines:?}");
        }
        assert_eq!(wrapped(text, 11, 2000.0, 2), [text]);
        assert_eq!(wrapped("", 11, 100.0, 2), [""; 0]);
        assert!(wrapped(text, 11, 80.0, 1)[0].ends_with('…'));
    }
}
