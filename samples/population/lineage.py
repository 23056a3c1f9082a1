#!/usr/bin/env python3
"""Prints how the best member of a run came about: whose weights it had, and with which hyperparameters, from sync point to
sync point. Usage: lineage.py RUN [TRAINER]"""
import json
import sys


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    syncs, finished = {}, {}
    try:
        with open(sys.argv[1] + "/run.jsonl", encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["kind"] == "sync_point":  # one that was done again after a crash replaces the first
                    syncs[entry["index"]] = {t["trainer"]: t for t in entry["trainers"]}
                elif entry["kind"] == "trainer_finished":
                    finished[entry["trainer"]] = entry["metadata"]
    except OSError as e:
        sys.exit(f"{e.filename}: {e.strerror}; is {sys.argv[1]} a run's directory?")
    if not finished:
        sys.exit("no trainer of this run has finished")
    if len(sys.argv) == 3:
        chosen = [m for m in finished.values() if m["name"] == sys.argv[2]]
        if not chosen:
            sys.exit(f"no finished trainer is called {sys.argv[2]}; there are " + ", ".join(sorted(m["name"] for m in finished.values())))
        end = chosen[0]
    else:
        end = max(finished.values(), key=lambda m: float(m["accuracy"]))

    def show(m, what):
        settings = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in m["hyperparameters"].items())
        print(f"  step {m['step']:>6}  {m['name']:<10} accuracy {float(m['accuracy']):.4f}  {settings}  {what}".rstrip())

    # Backwards: who had, before each sync point, the weights that the best one ended with?
    path, who = [], end["trainer"]
    for index in sorted(syncs, reverse=True):
        here = syncs[index].get(who)
        if here is None:
            continue
        donor = here["decision"].get("copy_from")
        if donor is not None and donor in syncs[index]:
            path.append((syncs[index][donor], f"-> gives its weights to {here['name']}"))
            who = donor
        else:
            path.append((here, ""))
    print(f"{end['name']}, the " + ("best" if len(sys.argv) == 2 else "one asked for") + ", came about so:")
    for m, what in reversed(path):
        show(m, what)
    show(end, "(the end)")


main()
