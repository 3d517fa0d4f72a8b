"""What PyTorch's torchrun does when a rank is killed or frozen: the peer of `cargo xtask bench recover`.

  python recover.py --case "kill -9 of a rank"

One run: it starts torchrun with two ranks that train, waits until they are warm, hits rank 1, waits until a step is
done that was not done before, stops everything, and ends with one JSON object on the last line, described in
bench/README.md.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 2
# What rank 1 is hit with, and how long a rank waits for another in a collective, seconds: as on our side.
CASES = {
    "kill -9 of a rank": (signal.SIGKILL, 20),
    "frozen rank": (signal.SIGSTOP, 10),
}
WARM_UP_STEPS = 50
CHECKPOINT_EVERY_STEPS = 20
# Longest waits, seconds.
START_DEADLINE = 120
RECOVER_DEADLINE = 120
STOP_DEADLINE = 20
LOOK_EVERY = 0.01
# Of <sys/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """However the parent ends, nothing that it started may go on."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# ---- one rank, started by torchrun


class Diary:
    """What one process of one rank did, and when: lines of JSON in a file of its own."""

    def __init__(self, folder):
        file = f"{os.environ['RANK']}.{os.getpid()}.diary"
        self.lines = open(os.path.join(folder, file), "a", buffering=1)

    def note(self, what, step=None):
        print(json.dumps({"what": what, "step": step, "at": time.time()}), file=self.lines)


def rank_main(args):
    die_with_parent()
    diary = Diary(args.folder)
    diary.note("started")
    try:
        train(args, diary)
    except BaseException:
        diary.note("failed")
        raise


def train(args, diary):
    """The model, batch and optimizer of examples/digits on made-up data, until somebody ends it."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    checkpoint = os.path.join(args.folder, "checkpoint.pt")
    step = 0
    if os.path.exists(checkpoint):
        found = torch.load(checkpoint)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    replicas = nn.parallel.DistributedDataParallel(model)
    # This rank's half of a batch of 128.
    inputs, labels = torch.rand(64, 64), torch.randint(10, (64,))
    while True:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(replicas(inputs), labels).backward()
        optimizer.step()
        step += 1
        diary.note("step", step)
        if dist.get_rank() == 0 and step % CHECKPOINT_EVERY_STEPS == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)


# ---- what starts torchrun, hits a rank and watches


def diaries(folder):
    """What every process of every rank has written so far: {(rank, pid): [note]}."""
    found = {}
    for file in os.listdir(folder):
        if file.endswith(".diary"):
            rank, pid, _ = file.split(".")
            with open(os.path.join(folder, file)) as lines:
                # The last line may be half written.
                notes = [json.loads(line) for line in lines if line.endswith("\n")]
            found[int(rank), int(pid)] = notes
    return found


def steps(notes):
    return [(note["step"], note["at"]) for note in notes if note["what"] == "step"]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def start(folder, timeout):
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TMPDIR=folder)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", "--max-restarts=3", os.path.abspath(__file__)]
    command += ["--folder", folder, "--timeout", str(timeout)]
    with open(os.path.join(folder, "log"), "w") as log:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def tell(folder, what):
    """Why this run has no figure: the errors that torchrun and its ranks named last, and a sentence."""
    with open(os.path.join(folder, "log"), errors="replace") as log:
        errors = [line.rstrip() for line in log if "Error" in line]
    print(*errors[-10:], f"recover.py: {what}", sep="\n", file=sys.stderr, flush=True)


def wait_until_warm(folder, launcher):
    deadline = time.monotonic() + START_DEADLINE
    while True:
        found = diaries(folder)
        done = [steps(notes)[-1:] for notes in found.values()]
        if len(done) == RANKS and all(last and WARM_UP_STEPS <= last[0][0] for last in done):
            return found
        if launcher.poll() is not None or RANKS < len(done) or deadline < time.monotonic():
            tell(folder, f"the ranks did not do {WARM_UP_STEPS} steps within {START_DEADLINE} s")
            raise SystemExit(1)
        time.sleep(LOOK_EVERY)


class Watch:
    """What becomes of a group whose rank 1 is hit. Times are seconds from that moment."""

    def __init__(self, folder, launcher, old):
        self.folder, self.launcher = folder, launcher
        self.old = set(old)
        self.survivor = next(pid for rank, pid in old if rank == 0)
        self.noticed = self.stepping = self.lost = None
        self.at = time.time()

    def look(self):
        has_ended = self.launcher.poll() is not None or not is_running(self.survivor)
        ended = [time.time()] if has_ended else []
        found = diaries(self.folder)
        old = [note for key in self.old for note in found[key]]
        new = [note for key in found.keys() - self.old for note in found[key]]
        if self.noticed is None:
            signs = [note["at"] for note in old if note["what"] == "failed"]
            signs += [note["at"] for note in new if note["what"] == "started"]
            self.noticed = min(signs + ended) - self.at if signs + ended else None
        highest = max(step for step, _ in steps(old))
        further = [at for step, at in steps(new) if highest < step]
        if further:
            self.stepping = min(further) - self.at
            self.lost = highest + 1 - min(step for step, _ in steps(new))

    def until_stepping(self):
        deadline = time.monotonic() + RECOVER_DEADLINE
        while self.stepping is None:
            has_ended = self.launcher.poll() is not None
            self.look()
            if self.stepping is None and has_ended:
                return tell(self.folder, f"torchrun ended with status {self.launcher.returncode}")
            if self.stepping is None and deadline < time.monotonic():
                return tell(self.folder, f"no step was done within {RECOVER_DEADLINE} s")
            time.sleep(LOOK_EVERY)


def descendants(root):
    children = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(pid))
    found, below = [], [root]
    while below:
        below = [child for parent in below for child in children.get(parent, [])]
        found += below
    return found


def stop_all():
    """Kills and reaps all that was started here: a child whose parent is gone has become this process's own."""
    deadline = time.monotonic() + STOP_DEADLINE
    while left := descendants(os.getpid()):
        if deadline < time.monotonic():
            raise SystemExit(f"still there after {STOP_DEADLINE} s: {left}")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(LOOK_EVERY)


def name():
    version = importlib.metadata.version("torch").split("+")[0]
    has_own_store = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"
    return f"torch {version} torchrun gloo" + ", own store" * has_own_store


def drive(case):
    hit, timeout = CASES[case]
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    # So that the end of this process is an ordinary one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="lockstep-peer-") as folder:
        try:
            launcher = start(folder, timeout)
            old = wait_until_warm(folder, launcher)
            victim = next(pid for rank, pid in old if rank == 1)
            watch = Watch(folder, launcher, old)
            os.kill(victim, hit)
            watch.until_stepping()
        finally:
            stop_all()
    answer = {
        "case": case,
        "name": name(),
        "noticed_s": watch.noticed,
        "stepping_s": watch.stepping,
        "steps_lost": watch.lost,
    }
    print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        return rank_main(args)
    if args.case is None:
        parser.error("which case?")
    drive(args.case)


if __name__ == "__main__":
    main()
