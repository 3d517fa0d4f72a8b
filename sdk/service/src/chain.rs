//! Errors in one line: `Display` never repeats a source, so whoever logs prints the chain.

/// An error and its sources in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the folder")]
    struct Outer(#[from] std::io::Error);

    #[test]
    fn every_source_is_told_once_outermost_first() {
        let error = Outer(std::io::Error::other("the disk is gone"));
        assert_eq!(chain(&error), "reading the folder: the disk is gone");
    }
}
