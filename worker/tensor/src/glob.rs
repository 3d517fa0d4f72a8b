//! Patterns over parameter names.

/// Whether `pattern` fits the whole of `name`. `*` stands for any characters, none included, dots
/// included; every other character stands for itself.
///
/// A few lines in place of a dependency: parameter names have no folders, so that the rules in which
/// crates for globs differ (separators, classes, braces, escapes) would only be in the way.
///
/// Each `*` takes as little as it can; where the rest then fails, the last `*` takes one byte more.
/// Going back to an earlier one is never needed. At most `pattern.len() · name.len()` comparisons.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // Where to go on after a failure: behind the last `*`, and how far that one has got.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match (pattern.get(p), retry) {
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, n));
            }
            (Some(&byte), _) if byte == name[n] => {
                p += 1;
                n += 1;
            }
            (_, Some((behind, taken))) => {
                p = behind;
                n = taken + 1;
                retry = Some((behind, n));
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word by word.
    fn by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            Some((byte, rest)) => {
                name.split_first().is_some_and(|(n, name)| n == byte && by_definition(rest, name))
            }
        }
    }

    #[test]
    fn a_star_stands_for_any_characters_and_the_rest_for_itself() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "fc1.weight"),
            ("*.bias", "layer1.0.bn1.bias"),
            ("h.*.ln_*", "h.11.ln_1.weight"),
            ("fc1.weight", "fc1.weight"),
            ("größe*", "größe.weight"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("*.bias", "bias"), ("fc1", "fc1.weight"), ("fc?.weight", "fc1.weight")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn it_is_the_definition(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(&pattern, &name),
                by_definition(pattern.as_bytes(), name.as_bytes())
            );
        }
    }
}
