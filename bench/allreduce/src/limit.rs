//! What the machine itself can do: the same bytes moved by the same two processes at the same time,
//! without anything in common.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::fd::AsFd as _,
    time::Instant,
};

use anyhow::Context as _;
use lockstep_bench_ranks::{RankArguments, milliseconds, take_core};
use lockstep_collective::{Dtype, OwnArena, ProcessGroup as _};
use lockstep_shm::{copy, copy_streaming};
use rustix::event::{PollFd, PollFlags, poll};

use crate::{
    case::{Case, RANKS, What},
    rank::{Timed, own_value},
};

/// Reads all own numbers and writes as many own ones, in three ways: to where they were read, to
/// elsewhere, and to elsewhere past the caches.
pub(crate) fn time_memory(timed: &mut Timed, calls: u32) -> anyhow::Result<Vec<Vec<f64>>> {
    let ways: [fn(&mut OwnArena, usize); 3] = [
        |arena, len| arena.floats_mut(0, 0..len).iter_mut().for_each(|number| *number += 1.0),
        |arena, len| {
            let (from, into) = arena.two(0, 1, 0..len);
            copy(from, into);
        },
        |arena, len| {
            let (from, into) = arena.two(0, 1, 0..len);
            copy_streaming(from, into);
        },
    ];
    let len = timed.case.floats();
    let mut times = vec![Vec::new(); ways.len()];
    for call in 0..calls {
        for (way, times) in ways.iter().zip(&mut times) {
            timed.write(Dtype::F32, own_value(timed.group.rank(), call));
            timed.meet()?;
            let began = Instant::now();
            way(&mut timed.arena, len);
            times.push(milliseconds(began));
        }
    }
    Ok(times)
}

/// A plain connection to the other process.
#[derive(Debug)]
pub(crate) struct Pair {
    stream: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Pair {
    /// Rank 0 is called by rank 1.
    pub(crate) fn connect(case: Case, arguments: &RankArguments) -> anyhow::Result<Self> {
        let stream = match arguments.rank {
            0 => arguments.listener()?.accept().context("being called")?.0,
            _ => TcpStream::connect(arguments.endpoints[0]).context("calling")?,
        };
        stream.set_nodelay(true)?;
        take_core(arguments.rank, RANKS)?;
        let bytes = match case.what {
            What::Barrier => 1,
            What::AllReduce { bytes, .. } => bytes,
        };
        Ok(Self { stream, out: vec![1; bytes], into: vec![0; bytes] })
    }

    /// Moves as many bytes out and in as an all-reduce must: of two ranks each sends half of its
    /// numbers to be added up and half of the results.
    pub(crate) fn time(&mut self, calls: u32) -> anyhow::Result<Vec<f64>> {
        (0..calls).map(|_| self.call()).collect()
    }

    fn call(&mut self) -> anyhow::Result<f64> {
        self.out.fill(2);
        self.stream.set_nonblocking(false)?;
        for _ in 0..2 {
            self.stream.write_all(&[0])?;
            self.stream.read_exact(&mut [0])?;
        }
        self.stream.set_nonblocking(true)?;
        let began = Instant::now();
        let (mut sent, mut came) = (0, 0);
        while sent < self.out.len() || came < self.into.len() {
            let wrote = moved(self.stream.write(&self.out[sent..]))?;
            let read = moved(self.stream.read(&mut self.into[came..]))?;
            sent += wrote;
            came += read;
            if wrote + read == 0 {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, sent < self.out.len());
                poll(&mut [PollFd::from_borrowed_fd(self.stream.as_fd(), flags)], None)?;
            }
        }
        Ok(milliseconds(began))
    }
}

fn moved(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
