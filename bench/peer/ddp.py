"""One training step of two ranks with PyTorch's DistributedDataParallel over Gloo, timed on request: the peer
of `cargo xtask bench ddp`.

  python ddp.py --case mlp-128 --threads 1

Models are those of step.py; the protocol on standard input and output is described in bench/README.md.
"""

import argparse
import os
import sys
import time

import ranks
import step


def rank_main(args):
    ranks.take_core(args.rank)
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(args.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meet = f"file://{args.folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=args.rank, world_size=ranks.RANKS)
    torch.manual_seed(7)
    make_model, make_batch, make_optimizer = step.CASES[args.case]
    model = DistributedDataParallel(make_model())
    inputs, labels = make_batch()
    optimizer = make_optimizer(model.parameters())

    def one_step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def time_rounds(steps):
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            one_step()
            times.append((time.perf_counter() - began) * 1e3)
        return times

    time_rounds(step.WARM_UP_STEPS)
    name = f"torch {torch.__version__.split('+')[0]} DDP gloo"
    ranks.serve(args.folder, name, time_rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=step.CASES, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        return rank_main(args)
    ranks.drive(args.case, args.threads, "gloo", [os.path.abspath(__file__), *sys.argv[1:]])


if __name__ == "__main__":
    main()
