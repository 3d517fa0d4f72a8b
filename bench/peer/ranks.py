"""Ranks of a peer as processes, and the protocol of bench/README.md on standard input and output.

This process starts the ranks and talks to each over a socket: a rank that waits for a command sleeps,
whatever its library does.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

RANKS = 2


def take_core(rank):
    """A core for each rank, as on every side of the benchmark; threads that a library starts share it."""
    cores = sorted(os.sched_getaffinity(0))
    if RANKS <= len(cores):
        os.sched_setaffinity(0, [cores[rank]])


def peak_rss_mib():
    with open("/proc/self/status") as status:
        kib = next(line.split()[1] for line in status if line.startswith("VmHWM:"))
    return int(kib) / 1024


def serve(folder, name, time_rounds):
    """One rank, warm: times as many rounds as it is asked for, until its parent closes."""
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(f"{folder}/parent")
        lines = parent.makefile("rw")

        def answer(**fields):
            print(json.dumps(fields), file=lines, flush=True)

        answer(name=name)
        for line in lines:
            answer(ms=time_rounds(json.loads(line)["rounds"]), peak_rss_mib=peak_rss_mib())


def commands(library, script):
    """What starts all ranks of a library: a program for each, or one for all."""
    if library == "gloo":
        return [[*script, "--rank", str(rank)] for rank in range(RANKS)]
    mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or "mpiexec"
    return [[mpiexec, "--oversubscribe", "--bind-to", "none", "-n", str(RANKS), *script]]


def drive(case, threads, library, script, **environment):
    """The parent: starts `script` as each rank and answers commands."""
    environment = dict(
        os.environ,
        OMP_NUM_THREADS=str(threads),
        MKL_NUM_THREADS=str(threads),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        **environment,
    )
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/parent")
        listener.listen()
        start = dict(env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        script = [sys.executable, *script, "--folder", folder]
        processes = [subprocess.Popen(line, **start) for line in commands(library, script)]
        listener.settimeout(300)
        ranks = [listener.accept()[0].makefile("rw") for _ in range(RANKS)]
        names = [json.loads(rank.readline())["name"] for rank in ranks]
        print(json.dumps({"case": case, "threads": threads, "name": names[0]}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            if (command["case"], command["threads"]) != (case, threads):
                raise SystemExit(f"this process measures {case} on {threads} threads, not {line}")
            for rank in ranks:
                print(json.dumps({"rounds": command["rounds"]}), file=rank, flush=True)
            answers = [json.loads(rank.readline()) for rank in ranks]
            slower = [max(times) for times in zip(*(answer["ms"] for answer in answers))]
            peak = max(answer["peak_rss_mib"] for answer in answers)
            print(json.dumps({"case": case, "ms": slower, "peak_rss_mib": peak}), flush=True)
        for rank in ranks:
            rank.close()
        if any([process.wait() for process in processes]):
            raise SystemExit("a rank failed; what it said is above")
