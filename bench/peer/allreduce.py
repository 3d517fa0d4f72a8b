"""One collective between two ranks of PyTorch over Gloo, or of Open MPI, timed on request: the peers of
`cargo xtask bench allreduce`.

  python allreduce.py --library gloo --case "shm 2 ranks 25 MiB f32" --threads 1

Cases and the protocol on standard input and output are described in bench/README.md.
"""

import argparse
import os
import sys
import time

import ranks
from ranks import RANKS

WARM_UP = 3
BARRIERS = 4
KIB, MIB = 1 << 10, 1 << 20
# Bytes of each rank; none: a barrier.
CASES = {
    "shm 2 ranks 64 KiB f32": (64 * KIB, "f32"),
    "shm 2 ranks 1 MiB f32": (MIB, "f32"),
    "shm 2 ranks 4 MiB f32": (4 * MIB, "f32"),
    "shm 2 ranks 25 MiB f32": (25 * MIB, "f32"),
    "shm 2 ranks 100 MiB f32": (100 * MIB, "f32"),
    "shm 2 ranks 25 MiB bf16": (25 * MIB, "bf16"),
    "shm 2 ranks barrier": None,
    "tcp 2 ranks 25 MiB f32": (25 * MIB, "f32"),
    "tcp 2 ranks barrier": None,
}


class Gloo:
    """Loopback is how Gloo's ranks of one machine reach each other, whatever the case says."""

    def __init__(self, rank, folder):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
        self.torch, self.rank, self.barrier = torch, rank, dist.barrier
        self.all_reduce = dist.all_reduce
        self.name = f"torch {torch.__version__.split('+')[0]} gloo"

    def numbers(self, size, dtype):
        kind = {"f32": self.torch.float32, "bf16": self.torch.bfloat16}[dtype]
        return self.torch.empty(size // kind.itemsize, dtype=kind)

    @staticmethod
    def write(numbers, value):
        numbers.fill_(value)


class Mpi:
    def __init__(self, rank, _folder):
        import mpi4py
        import numpy
        from mpi4py import MPI

        self.numpy, self.in_place, self.comm = numpy, MPI.IN_PLACE, MPI.COMM_WORLD
        assert self.comm.rank == rank and self.comm.size == RANKS
        self.rank, self.barrier = rank, self.comm.Barrier
        version = ".".join(str(part) for part in MPI.get_vendor()[1])
        self.name = f"{MPI.get_vendor()[0]} {version}, mpi4py {mpi4py.__version__}"

    def all_reduce(self, numbers):
        self.comm.Allreduce(self.in_place, numbers)

    def numbers(self, size, dtype):
        if dtype != "f32":
            raise SystemExit(f"MPI has no {dtype}")
        return self.numpy.empty(size // 4, self.numpy.float32)

    @staticmethod
    def write(numbers, value):
        numbers.fill(value)


LIBRARIES = {"gloo": Gloo, "mpi": Mpi}


def values(call):
    return [call % 61 + rank + 1.0 for rank in range(RANKS)]


def time_calls(library, numbers, first, calls):
    times = []
    for call in range(first, first + calls):
        if numbers is not None:
            library.write(numbers, values(call)[library.rank])
        for _ in range(BARRIERS):
            library.barrier()
        began = time.perf_counter()
        if numbers is None:
            library.barrier()
        else:
            library.all_reduce(numbers)
        times.append((time.perf_counter() - began) * 1e3)
        if numbers is not None and float(numbers[-1]) != sum(values(call)):
            raise SystemExit(f"the sum is wrong in call {call}")
    return times


def rank_main(args):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"]) if args.rank is None else args.rank
    ranks.take_core(rank)
    library = LIBRARIES[args.library](rank, args.folder)
    case = CASES[args.case]
    numbers = library.numbers(*case) if case else None
    done = 0

    def time_rounds(calls):
        nonlocal done
        done += calls
        return time_calls(library, numbers, done - calls, calls)

    time_rounds(WARM_UP)
    ranks.serve(args.folder, library.name, time_rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        return rank_main(args)
    over_tcp = dict(OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo")
    ranks.drive(
        args.case,
        args.threads,
        args.library,
        [os.path.abspath(__file__), *sys.argv[1:]],
        **(over_tcp if args.case.startswith("tcp") else {}),
    )


if __name__ == "__main__":
    main()
