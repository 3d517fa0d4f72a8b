//! The web page is built apart from Rust. Where it has not been built yet, a page that says so stands in its place,
//! so that the server compiles in a fresh checkout.

use std::path::Path;
use std::{fs, io};

const NOT_BUILT: &str = "<!doctype html>
<html lang=\"en\"><meta charset=\"utf-8\"><title>Lockstep</title>
<p>The web page is not part of this build: run <code>cargo xtask setup</code> and build the server again.
The API is at <code>/v1</code>, its description at <a href=\"/openapi.json\">/openapi.json</a>.</p></html>
";

fn main() -> io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ui/dist");
    let index = dist.join("index.html");
    if !index.exists() {
        fs::create_dir_all(&dist)?;
        fs::write(&index, NOT_BUILT)?;
    }
    let mut out = io::stdout().lock();
    io::Write::write_all(
        &mut out,
        b"cargo::rerun-if-changed=../ui/dist\ncargo::rerun-if-changed=../migrations\n",
    )
}
