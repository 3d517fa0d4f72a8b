//! The examples' data: from Debian packages, which are installed when they are missing, into the examples' folders.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use camino::Utf8Path;

use super::Name;
use crate::{out, setup, shell};

/// What Debian's `dataset-fashion-mnist` installs, each compressed by gzip, and the size of each when it is not.
const FASHION: &[(&str, u64)] = &[
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
];

const FASHION_FOLDER: &str = "/usr/share/datasets/fashion-mnist";

/// Verses of the King James Bible.
const VERSES: usize = 31_102;

/// Puts the example's data into its folder, unless it is there.
pub(super) fn prepare(root: &Utf8Path, example: Name) -> anyhow::Result<()> {
    let root = root.join("examples");
    match example {
        Name::Fashion => fashion(&root.join("fashion/data")),
        Name::Text => text(&root.join("text/data/text.txt")),
    }
}

/// The four IDX files, unpacked: a guest reads them in place.
fn fashion(folder: &Utf8Path) -> anyhow::Result<()> {
    let is_there = |(name, size): &(&str, u64)| {
        folder.join(name).metadata().is_ok_and(|data| data.len() == *size)
    };
    if FASHION.iter().all(is_there) {
        return Ok(());
    }
    let packed = |name: &str| Utf8Path::new(FASHION_FOLDER).join(format!("{name}.gz"));
    if !FASHION.iter().all(|(name, _)| packed(name).is_file()) {
        install("dataset-fashion-mnist", &["dataset-fashion-mnist"])?;
    }
    for (name, size) in FASHION {
        let unpacked = output(Command::new("gzip").arg("-dc").arg(packed(name)))?;
        if unpacked.len() as u64 != *size {
            bail!("{}: {} bytes unpacked, expected {size}", packed(name), unpacked.len());
        }
        write(&folder.join(name), &unpacked)?;
    }
    Ok(())
}

/// The Bible as the program `bible` prints it, without the verses' numbers.
fn text(path: &Utf8Path) -> anyhow::Result<()> {
    if path.is_file() {
        return Ok(());
    }
    if !shell::has("bible") {
        install("the King James Bible", &["bible-kjv", "bible-kjv-text"])?;
    }
    let printed = output(Command::new("bible").args(["-f", "gen1:1-rev22:21"]))?;
    let text = verses(&String::from_utf8(printed).context("what `bible` prints is no text")?)?;
    let count = text.lines().count();
    if count != VERSES || !text.is_ascii() {
        bail!("`bible` printed {count} verses, expected {VERSES}, in ASCII");
    }
    write(path, text.as_bytes())
}

/// Takes `Ge1:1 ` off each line.
fn verses(printed: &str) -> anyhow::Result<String> {
    let mut text = String::with_capacity(printed.len());
    for line in printed.lines() {
        let verse = line.split_once(' ').filter(|(place, _)| place.contains(':'));
        let (_, verse) = verse.with_context(|| format!("`bible` printed no verse: {line:?}"))?;
        text.push_str(verse);
        text.push('\n');
    }
    Ok(text)
}

fn install(what: &str, packages: &[&str]) -> anyhow::Result<()> {
    setup::apt_install(packages).with_context(|| format!("this example needs {what}"))
}

fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting `{program}`"))?;
    if !output.status.success() {
        bail!("`{program}` ended with {}", output.status);
    }
    Ok(output.stdout)
}

/// Renamed into place: an interrupted task leaves no half file among the data, where it would be uploaded.
fn write(path: &Utf8Path, content: &[u8]) -> anyhow::Result<()> {
    let temporary = path.parent().context("data lie in a folder")?.with_extension("new");
    std::fs::write(&temporary, content).with_context(|| format!("writing {temporary}"))?;
    std::fs::rename(&temporary, path).with_context(|| format!("writing {path}"))?;
    out::note(&format!("made {path}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verses_lose_their_numbers_and_anything_else_is_refused() {
        let printed =
            "Ge1:3 And God said, Let there be light: and there was light.\n1Cor13:13 And now\n";
        let text = "And God said, Let there be light: and there was light.\nAnd now\n";
        assert_eq!(verses(printed).unwrap(), text);
        assert!(verses("Genesis 1\n").unwrap_err().to_string().contains("Genesis 1"));
    }
}
