//! A stream whose octets may bring file descriptors along.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Descriptors of one message: a group's memory and a socket.
const DESCRIPTORS_CAP: usize = 2;

/// Reads a unix stream and keeps the descriptors that come with it, closed on exec.
#[derive(Debug)]
pub(crate) struct WithDescriptors {
    stream: UnixStream,
    come: VecDeque<OwnedFd>,
}

impl WithDescriptors {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, come: VecDeque::new() }
    }

    /// The next `count` that have come, or as many as there are.
    pub(crate) fn take(&mut self, count: usize) -> Vec<OwnedFd> {
        self.come.drain(..count.min(self.come.len())).collect()
    }
}

impl Read for WithDescriptors {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_CAP))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut octets = [IoSliceMut::new(into)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut octets, &mut ancillary, flags)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.come.extend(descriptors);
            }
        }
        Ok(received.bytes)
    }
}
