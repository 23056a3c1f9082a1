#!/usr/bin/env python3
"""The round of sync points as a Ray program, for comparison with Troupe's bench_round.

N actors do a step that costs nothing, report metadata (a dict of eight numbers), the driver decides new hyperparameters for
each and pushes them; that is one round. Prints one JSON object: microseconds per round and per trainer, and results per second.
This is Ray at its leanest: no Tune, no checkpoints, no logging, one driver.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -r bench/peers/requirements-ray.txt
    /tmp/venv/bin/python bench/peers/ray_round.py --trainers 3 --rounds 200
"""
import argparse
import json
import statistics
import time

import ray


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, index):
        self.index = index
        self.step = 0
        self.lr = 0.1

    def train_to_sync(self):
        self.step += 1
        return {"trainer": self.index, "step": self.step, "loss": 1.0 / self.step, "accuracy": 0.5,
                "grad_norm": 1.0, "compute_s": 0.0, "wait_s": 0.0, "sync_s": 0.0}

    def push(self, lr):
        self.lr = lr
        return self.step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    args = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    trainers = [Trainer.remote(i) for i in range(args.trainers)]
    times = []
    for r in range(args.warmup + args.rounds):
        start = time.perf_counter()
        reports = ray.get([t.train_to_sync.remote() for t in trainers])
        best = min(reports, key=lambda m: m["loss"])
        ray.get([t.push.remote(best["loss"] * 0.1) for t in trainers])
        if r >= args.warmup:
            times.append(time.perf_counter() - start)
    us = statistics.median(times) * 1e6
    print(json.dumps({"peer": "ray " + ray.__version__, "trainers": args.trainers, "rounds": args.rounds,
                      "us_per_round": round(us, 1), "us_per_trainer": round(us / args.trainers, 2),
                      "results_per_second": round(args.trainers / us * 1e6, 1)}))
    ray.shutdown()


if __name__ == "__main__":
    main()
