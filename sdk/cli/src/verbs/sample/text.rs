//! Between text and tokens: a token is an ASCII character's number, as in `examples/text`.
//!
//! Nothing in a job says what its tokens mean: that is the loader's. So a vocabulary that is larger than the numbers of
//! bytes is refused, and of a smaller one the numbers are taken at their word.

use std::fmt::Write as _;

use crate::failure::Failure;

/// Largest vocabulary whose tokens may be bytes.
const VOCABULARY_CAP: u32 = 256;

/// What an empty prompt stands for: the end of a line.
const LINE_BREAK: u32 = b'\n' as u32;

/// Refuses a vocabulary that is not one of bytes.
pub(super) fn check_vocabulary(size: u32) -> Result<(), Failure> {
    if size <= VOCABULARY_CAP {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the job's model.vocab_size is {size}, expected at most {VOCABULARY_CAP}: a token is read and shown as a byte"
    )))
}

/// The tokens of a prompt, of a model that sees so many at once; those of a line break for an empty one.
pub(super) fn ids(prompt: &str, vocabulary: u32, longest: u32) -> Result<Vec<u32>, Failure> {
    if prompt.is_empty() && vocabulary <= LINE_BREAK {
        return Err(Failure::Usage(format!(
            "--prompt is empty, which stands for a line break, {LINE_BREAK}; expected characters below model.vocab_size, {vocabulary}"
        )));
    }
    if prompt.is_empty() {
        return Ok(vec![LINE_BREAK]);
    }
    let most = vocabulary.min(128);
    let id = |(place, character): (usize, char)| {
        let id = u32::from(character);
        let refuse = || {
            let place = place + 1;
            Failure::Usage(format!(
                "--prompt: character {place} is {character:?} ({id}), expected ASCII below {most} (model.vocab_size is {vocabulary})"
            ))
        };
        if id < most { Ok(id) } else { Err(refuse()) }
    };
    let ids: Vec<u32> = prompt.chars().enumerate().map(id).collect::<Result<_, _>>()?;
    if (longest as usize) < ids.len() {
        return Err(Failure::Usage(format!(
            "--prompt has {} characters, expected at most {longest} (model.n_positions)",
            ids.len()
        )));
    }
    Ok(ids)
}

/// A token as people read it: ASCII and line breaks as they are, everything else as `\x1b`.
pub(super) fn show(id: u32, to: &mut String) {
    match u8::try_from(id) {
        Ok(byte) if byte == b'\n' || byte == b' ' || byte.is_ascii_graphic() => {
            to.push(char::from(byte));
        }
        // Writing to a String cannot fail.
        _ => write!(to, "\\x{id:02x}").expect("a String takes everything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(prompt: &str, vocabulary: u32, longest: u32) -> String {
        ids(prompt, vocabulary, longest).unwrap_err().to_string()
    }

    #[test]
    fn a_prompt_s_tokens_are_its_characters_and_an_empty_one_is_a_line_break() {
        assert_eq!(ids("In a\n", 128, 8).unwrap(), [73, 110, 32, 97, 10]);
        assert_eq!(ids("", 128, 8).unwrap(), [10]);
        assert_eq!(ids("12345678", 128, 8).unwrap().len(), 8);
    }

    #[test]
    fn what_is_no_token_or_too_long_is_refused_by_name() {
        assert_eq!(
            refusal("caf\u{e9}", 256, 8),
            "--prompt: character 4 is 'é' (233), expected ASCII below 128 (model.vocab_size is 256)"
        );
        assert_eq!(
            refusal("Az", 65, 8),
            "--prompt: character 1 is 'A' (65), expected ASCII below 65 (model.vocab_size is 65)"
        );
        assert_eq!(
            refusal("123456789", 128, 8),
            "--prompt has 9 characters, expected at most 8 (model.n_positions)"
        );
        assert!(refusal("", 10, 8).contains("model.vocab_size, 10"));
        assert!(check_vocabulary(256).is_ok());
        let found = check_vocabulary(50_257).unwrap_err().to_string();
        assert!(found.contains("model.vocab_size is 50257, expected at most 256"), "{found}");
    }

    #[test]
    fn what_does_not_print_is_shown_escaped() {
        let mut text = String::new();
        for id in [72, 105, 10, 32, 126, 9, 0, 27, 127, 233] {
            show(id, &mut text);
        }
        assert_eq!(text, "Hi\n ~\\x09\\x00\\x1b\\x7f\\xe9");
    }
}
