//! A new cluster, whole or not at all: made under another name, flushed once, renamed.

use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::process::Command;

use camino::Utf8Path;
use rustix::process::Signal;

use crate::PostgresError;
use crate::cluster::{Durability, OWNER};
use crate::error::IoContext as _;
use crate::find::Programs;
use crate::identity::{Identity, lookup};
use crate::spawn::confine;
use crate::stale::UNFINISHED;

/// Since then Postgres brings a UTF-8 locale of its own.
const BUILTIN_LOCALE_MAJOR: u32 = 17;
/// How much of a program's words an error repeats, bytes.
const OUTPUT_TAIL: usize = 2000;

/// Makes the cluster `folder/data`.
pub(crate) fn initialise(
    folder: &Utf8Path,
    data: &Utf8Path,
    programs: &Programs,
    identity: &Identity,
    durability: Durability,
) -> Result<(), PostgresError> {
    let unfinished = folder.join(format!("{UNFINISHED}{}", std::process::id()));
    run_with_a_locale(&unfinished, programs, identity)?;
    if durability == Durability::Durable {
        let opened = File::open(&unfinished).doing("open", &unfinished)?;
        rustix::fs::syncfs(&opened).doing("flush", &unfinished)?;
    }
    std::fs::rename(&unfinished, data).doing("rename to", data)?;
    if durability == Durability::Durable {
        File::open(folder).and_then(|opened| opened.sync_all()).doing("flush", folder)?;
    }
    Ok(())
}

/// Arguments to try, best first. Not every system has C.UTF-8.
fn locales(major: u32) -> &'static [&'static [&'static str]] {
    if BUILTIN_LOCALE_MAJOR <= major {
        &[&["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]]
    } else {
        &[&["--locale=C.UTF-8"], &["--locale=C"]]
    }
}

/// Goes on to the next locale only when initdb itself refused.
fn run_with_a_locale(
    data: &Utf8Path,
    programs: &Programs,
    identity: &Identity,
) -> Result<(), PostgresError> {
    let mut refusal = None;
    for locale in locales(programs.major) {
        match run_initdb(data, programs, identity, locale) {
            Err(error @ PostgresError::Program { .. }) => refusal = refusal.or(Some(error)),
            outcome => return outcome,
        }
    }
    // The first refusal: the one for the locale that should have worked.
    refusal.map_or(Ok(()), Err)
}

fn run_initdb(
    data: &Utf8Path,
    programs: &Programs,
    identity: &Identity,
    locale: &[&str],
) -> Result<(), PostgresError> {
    if data.exists() {
        std::fs::remove_dir_all(data).doing("remove", data)?;
    }
    DirBuilder::new().mode(0o700).create(data).doing("create", data)?;
    identity.give(data)?;
    let mut command = Command::new(programs.path("initdb"));
    command
        .args(["-D", data.as_str(), "-U", OWNER, "-E", "UTF8", "-k", "-N", "--no-instructions"])
        .args(["--auth-local=peer", "--auth-host=reject"])
        .args(locale);
    confine(&mut command, identity, Signal::KILL);
    let output = command.output().map_err(|source| explain_spawn(source, identity, data))?;
    if output.status.success() {
        return Ok(());
    }
    Err(PostgresError::Program {
        program: "initdb",
        status: output.status.to_string(),
        output: tail(&[output.stdout, output.stderr].concat()),
    })
}

/// A spawn that the system refused, most often because it has no user namespaces for us.
pub(crate) fn explain_spawn(
    source: std::io::Error,
    identity: &Identity,
    data: &Utf8Path,
) -> PostgresError {
    match identity {
        Identity::Namespaced(user) => PostgresError::NoIdentity {
            why: format!(
                "{data} cannot be reached as user {}, nor can a user namespace be made ({source})",
                user.name
            ),
        },
        Identity::Caller(_) | Identity::Other(_) => PostgresError::Io {
            what: format!("start Postgres's programs as user {}", identity.user().name),
            source,
        },
    }
}

/// The end of some output, as text.
pub(crate) fn tail(output: &[u8]) -> String {
    let from = output.len().saturating_sub(OUTPUT_TAIL);
    String::from_utf8_lossy(&output[from..]).trim().to_owned()
}

/// Writes who may connect: the caller, root and whoever Postgres runs as, each as the cluster's owner, by the kernel's
/// word on who is at the other end of the socket. Outside of the cluster, where only the caller writes.
pub(crate) fn write_access(folder: &Utf8Path, identity: &Identity) -> Result<(), PostgresError> {
    let caller = lookup(&rustix::process::geteuid().as_raw().to_string());
    let mut names = vec!["root".to_owned(), identity.user().name.clone()];
    names.extend(caller.map(|user| user.name));
    names.sort();
    names.dedup();
    let idents: String =
        names.iter().map(|name| format!("lockstep \"{name}\" {OWNER}\n")).collect();
    for (file, text) in [
        ("pg_hba.conf", format!("local all {OWNER} peer map=lockstep\n")),
        ("pg_ident.conf", idents),
    ] {
        let path = folder.join(file);
        std::fs::write(&path, text).doing("write", &path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).doing("chmod", &path)?;
    }
    Ok(())
}
