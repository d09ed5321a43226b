#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ten thousand mixed requests on one server; its resident memory must stay flat.

  soak.py [--program build/lily] [--model synth:micro] [--requests 10000] [--clients 16] [--seed 1]

Prints the memory every tenth of the way; fails when the last three tenths hold more than 2 percent above what the third and
fourth held, or when any request ends in anything but 200, 429 or its own hang-up.
"""
import argparse
import os
import pathlib
import random
import sys
import threading

from bench_program import find_program

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/py"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/lily"))
    parser.add_argument("--model", default="synth:micro")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["LILY"] = find_program(options.program)
    from serving import Server
    from test_server_load import one, resident
    with Server("--max-seqs", "8", "--max-queue", "400", model=options.model) as server:
        lock, statuses, faults, sizes = threading.Lock(), {}, [], []
        left = options.requests

        def client(i):
            nonlocal left
            r = random.Random(options.seed * 1000 + i)
            while not faults:
                with lock:
                    if left == 0:
                        return
                    left -= 1
                    if left % (options.requests // 10) == 0:
                        sizes.append(resident(server))
                        print(f"{options.requests - left:6} requests: {sizes[-1] / 1e6:.1f} MB", flush=True)
                try:
                    status = one(server, r)
                    with lock:
                        statuses[status] = statuses.get(status, 0) + 1
                except BaseException as e:  # noqa: BLE001 - told below
                    faults.append(e)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(options.clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if faults:
            raise faults[0]
        server.wait_idle(120)
    early, late = max(sizes[2:4]), max(sizes[-3:])
    is_good = set(statuses) <= {200, 429, None} and late <= early * 1.02
    print(f"statuses {statuses}; {early / 1e6:.1f} MB, then {late / 1e6:.1f} MB: {'flat' if is_good else 'FAILED'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
