"""Another process on the same GPU, which takes its memory's bandwidth until it is ended.

python -m benchmarks.gpu.servers.neighbour [--device cuda] [--mib 4096]
"""

from __future__ import annotations

import argparse
import sys

import torch

_COPIES = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=4096, help="copied at a time")
    args = parser.parse_args()
    source = torch.ones(args.mib << 20, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    print("copying", flush=True)
    while True:
        for _ in range(_COPIES):
            target.copy_(source)
        # waits for them, so that not more and more copies are asked for
        target[0].item()


if __name__ == "__main__":
    sys.exit(main())
