#!/usr/bin/python3
"""The random search of an SVM on handwritten digits with scikit-learn and joblib: the peer of samples/svm_search.

It is the example of joblib's and Ray's documentation: RandomizedSearchCV of an SVC with an RBF kernel over log grids of C,
gamma and tol, with and without balanced class weights; 300 draws, 5 folds, each fold a task. Prints one JSON object, with the
mean accuracy of every draw.

    apt-get install python3-sklearn
    bench/peers/svm_joblib.py --draws 300 --write-draws draws.json
    build/release/bin/svm_search --draws-file draws.json

The time is that of the search alone: without imports and reading, with worker processes that have started and imported
scikit-learn before, and without a final fit of the winner.
"""
import argparse
import json
import os
import sys
import time
import warnings

import joblib
import numpy as np
import sklearn
from sklearn.datasets import load_digits
from sklearn.model_selection import ParameterSampler, RandomizedSearchCV
from sklearn.svm import SVC

SPACE = {"C": np.logspace(-6, 6, 30), "gamma": np.logspace(-8, 8, 30), "tol": np.logspace(-4, -1, 30),
         "class_weight": [None, "balanced"]}


def plain(draw):
    """As in the file of draws; Python writes a real so that it is read back exactly."""
    return {"C": float(draw["C"]), "gamma": float(draw["gamma"]), "tol": float(draw["tol"]),
            "class_weight": draw["class_weight"]}


def warm(_):
    return SVC().fit([[0.0], [1.0]], [0, 1]).n_features_in_


def cpu_seconds():
    """Of this process and its children, which is where joblib computes."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()  # from the third field on
        except OSError:
            continue
        if int(pid) == os.getpid() or int(fields[1]) == os.getpid():
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Fixed(RandomizedSearchCV):
    """A search over draws that were made elsewhere."""

    def _run_search(self, evaluate_candidates):
        evaluate_candidates(self.param_distributions)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--draws", type=int, default=300)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--draws-file", help="take the draws from this file")
    p.add_argument("--write-draws", help="write the draws to this file")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--backend", choices=["loky", "threading", "multiprocessing"], default="loky")
    p.add_argument("--only-draw", action="store_true", help="write the draws and search nothing")
    args = p.parse_args()
    warnings.filterwarnings("ignore")
    if args.draws_file:
        with open(args.draws_file) as f:
            draws = json.load(f)
    else:
        draws = [plain(d) for d in ParameterSampler(SPACE, args.draws, random_state=args.seed)]
    if args.write_draws:
        with open(args.write_draws, "w") as f:
            f.write("[\n " + ",\n ".join(json.dumps(d) for d in draws) + "\n]\n")
    if args.only_draw:
        return
    digits = load_digits()
    search = Fixed(SVC(kernel="rbf"), draws, cv=5, n_iter=len(draws), n_jobs=args.jobs, refit=False)
    with joblib.parallel_backend(args.backend, n_jobs=args.jobs):
        joblib.Parallel()(joblib.delayed(warm)(i) for i in range(4 * args.jobs))
        start, cpu_start = time.perf_counter(), cpu_seconds()
        search.fit(digits.data, digits.target)
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu_start
    results = search.cv_results_
    best = int(search.best_index_)
    folds = [[float(results[f"split{k}_test_score"][i]) for k in range(5)] for i in range(len(draws))]
    json.dump({"peer": f"scikit-learn {sklearn.__version__} joblib {joblib.__version__} {args.backend}", "jobs": args.jobs,
               "draws": len(draws), "seconds": seconds, "cpu_seconds": cpu,
               "best": {"draw": best, "score": float(results["mean_test_score"][best]), **draws[best]},
               "results": [{**d, "score": float(results["mean_test_score"][i]), "folds": folds[i]}
                           for i, d in enumerate(draws)]}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
