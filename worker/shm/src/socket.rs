//! A socket that somebody else opened for this process.
#![expect(unsafe_code, reason = "takes over a descriptor by its number")]

use std::{
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd},
    sync::Mutex,
};

use rustix::io::{FdFlags, fcntl_setfd};

/// Descriptors that were taken over: each belongs to its taker alone.
static TAKEN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Takes over the socket that this process inherited as descriptor number `fd`. Programs started
/// from here do not inherit it.
///
/// # Errors
/// When there is no such descriptor, it is no socket, or it was taken over before.
pub fn inherited_socket(fd: i32) -> io::Result<OwnedFd> {
    let refused =
        |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {fd} {why}"));
    let target = fs::read_link(format!("/proc/self/fd/{fd}"))?;
    if fd <= 2 || !target.to_string_lossy().starts_with("socket:") {
        return Err(refused("is not an inherited socket"));
    }
    let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if taken.contains(&fd) {
        return Err(refused("was taken over before"));
    }
    taken.push(fd);
    // SAFETY: it is open, as the link says, and whoever started this process opened it for this
    // purpose; the list keeps it from being owned twice.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}
