//! The memory of a process group: an anonymous file that an agent makes and its ranks inherit.
//!
//! Anonymous, so that nothing is left behind whatever kills whom.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

/// Size of the control pages, which exist from the start so that ranks can meet in them.
pub const CONTROL_BYTES: usize = 128 * 1024;

/// Makes the memory of one process group: zeroed control pages, nothing else yet.
///
/// The descriptor is inherited by programs that are started while it is open.
pub fn create_group_memory() -> io::Result<OwnedFd> {
    let fd = memfd_create("lockstep-group", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, CONTROL_BYTES as u64)?;
    Ok(fd)
}

/// Opens the group memory that this process inherited as descriptor number `fd`.
///
/// The answer is a descriptor of its own, which programs started from here do not inherit.
///
/// # Errors
/// When there is no such descriptor, or it is no group memory.
pub fn inherited_group_memory(fd: i32) -> io::Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{fd}"))?;
    let is_memory = fcntl_get_seals(&opened).is_ok();
    if !is_memory || group_memory_bytes(&opened)? < CONTROL_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("descriptor {fd} is not the memory of a process group"),
        ));
    }
    Ok(opened.into())
}

/// Gives the memory its final size and seals that size, so that no mapping of it can ever fault.
///
/// # Errors
/// When it has been sized before (`PermissionDenied`), or there is not that much memory.
pub fn size_group_memory(fd: impl AsFd, bytes: usize) -> io::Result<()> {
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(())
}

/// The present size of the memory.
pub fn group_memory_bytes(fd: impl AsFd) -> io::Result<usize> {
    usize::try_from(fstat(fd)?.st_size).map_err(io::Error::other)
}
