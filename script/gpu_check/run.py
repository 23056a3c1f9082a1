"""What only a GPU can tell: does the CUDA path start, is it right, where does a step's time go, what does memory do, what is left
behind."""
import concurrent.futures
import json
import math
import os
import re

from . import machine
from .kernels import METRIC, slowest, step_of
from .leftovers import leaves_nothing
from .steps import Absent, Wrong, objects

PROGRAMS = ("troupe", "test_gpu", "bench_fusion", "bench_memory")
# Test files with cases that run on a GPU where there is one; the kernels first.
CASE_FILES = ("ops_test", "ops_training_test", "ops_layers_test", "ops_sequences_test", "gemm_test", "context_test", "capture_test",
              "cuda_source_test")
# Of their cases, those with kernels whose threads share memory.
RACES = re.compile(r"column|sum|loss|entropy|norm|embed|gather|epoch|pool|backward", re.IGNORECASE)
FOUND = 99  # the status of compute-sanitizer where it found something
TOLERANCE = 1e-3  # of losses on two devices. Two CPU libraries differ by less than 1e-4; a lost row of a batch by more than this


class Run:
    def __init__(self, check, here):
        self.check, self.here, self.device = check, here, here.device
        self.tiny = here.device == "cpu"
        self.env = here.environment()

    def all(self):
        held = None if self.tiny else machine.hold_device()
        self.start()
        self.one_model()
        found = self.cases()
        self.sanitized("GPU test cases under memcheck", "memcheck", found, 50)
        self.speed()
        self.kernels()
        self.memory("budgets and swapping", ["budgets", "swapping", "bandwidth"])
        self.losses()
        self.memory("captured steps, fusion, batches from the host", ["graphs", "fusion", "staging"])
        self.memory("states between slots, slots that open and close", ["exploits", "cycles"])
        for name in ("SIGINT", "SIGKILL"):
            self.check.do(f"row 27: {name} leaves nothing behind", 45,
                          lambda limit, n=name: leaves_nothing(self.check, self.here, self.env, n, limit))
        self.sanitized("races", "racecheck", [x for x in found if RACES.search(x)], 40)
        if held is not None:
            os.close(held)

    def bench(self, name, *options):
        return [self.here.program(name), "--device", self.device, *options]

    # -- does it start ------------------------------------------------------------------------------------------------------

    def start(self):
        for name in PROGRAMS:
            self.check.step(f"{name} starts", [self.here.program(name), "--help"], 20, lambda ended: {}, self.env)
        if not self.tiny:
            self.check.do("nvidia-smi", 30, self.nvidia_smi)
        command = [self.here.program("troupe"), "doctor", "--json"]
        found = self.check.step("doctor", command, 30, diagnosis, self.env)
        if found is None or self.tiny:
            return
        if self.check.do("a GPU can be used", 5, lambda _: gpu_of(found)) is None:
            self.check.stop("no GPU can be used")
        elif self.check.do("cuBLAS and NVRTC are found", 60, lambda limit: self.libraries(found, command, limit)) is None:
            self.check.stop("CUDA's libraries are not found")

    def nvidia_smi(self, limit):
        state = machine.gpu_state(self.check, limit)
        if state is None:
            raise Absent("there is no nvidia-smi")
        return state

    def libraries(self, found, command, limit):
        """Where Troupe does not find them by itself, of Python's packages or a toolkit elsewhere."""
        if found["cuBLAS"] and found["NVRTC"]:
            return {"cuBLAS": found["cuBLAS"], "NVRTC": found["NVRTC"]}
        folders = machine.library_folders(self.check)
        if not folders:
            raise Wrong("cuBLAS or NVRTC are neither in a toolkit nor where the loader looks nor in a Python's packages; name their "
                        "folders in TROUPE_CUDA_LIBRARIES", **found)
        self.env["TROUPE_CUDA_LIBRARIES"] = os.pathsep.join(folders)
        ended = self.check.execute(command, limit, self.env)
        if ended.why():
            raise Wrong(ended.why(), command=command)
        now = diagnosis(ended)
        if not now["cuBLAS"] or not now["NVRTC"]:
            raise Wrong("cuBLAS or NVRTC cannot be loaded from " + os.pathsep.join(folders), **now)
        return {"cuBLAS": now["cuBLAS"], "NVRTC": now["NVRTC"], "TROUPE_CUDA_LIBRARIES": folders}

    # -- is it right --------------------------------------------------------------------------------------------------------

    def one_model(self):
        self.check.step("one model", self.bench("bench_fusion", *self.small_model(), "--members", "1", "--rounds", "1", "--seconds",
                                                "0.02" if self.tiny else "0.3", "--json"), 40, speeds({1}), self.env)

    def small_model(self):
        return ["--model", "micro" if self.tiny else "mlp", "--synthetic"]

    def cases(self):
        """Each in a process of its own, since after one illegal address all later ones fail. Returns their names."""
        files = ["gemm_test"] if self.tiny else CASE_FILES
        names = []
        for file in files:
            command = [self.here.program("test_gpu"), "--list-test-cases", "--no-colors", f"--source-file=*/{file}.cpp"]
            found = self.check.step(f"cases of {file}", command, 20, listed, self.env)
            names += found["cases"] if found else []
        if not names:
            self.check.do("GPU test cases", 1, lambda _: nothing_to_do("no test case was found"))
        else:
            self.check.do("GPU test cases", 90, lambda limit: self.each_case(names, limit, 30, []))
        return names

    def sanitized(self, step, tool, names, limit):
        if self.tiny:
            return
        sanitizer = machine.tool("compute-sanitizer")
        before = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--report-api-errors", "no", "--print-limit", "3"]

        def work(seconds):
            if sanitizer is None:
                raise Absent("there is no compute-sanitizer")
            if not names:
                nothing_to_do("no test case was found")
            end = self.check.now() + seconds
            try:  # where the tool itself does not work, one failure says so
                self.each_case(names[:1], seconds, 30, before)
            except Wrong as e:
                if f"exit status {FOUND}" not in str(e):
                    raise
            return self.each_case(names, end - self.check.now(), 30, before)

        self.check.do(step, limit, work)

    def each_case(self, names, limit, each, before):
        env = dict(self.env) if self.tiny else {**self.env, "TROUPE_REQUIRE_CUDA": "1"}
        end = self.check.now() + limit
        wrong, undone = [], []

        def one(name):
            left = end - self.check.now()
            if left <= 0 or self.check.stopped:
                undone.append(name)
                return
            ended = self.check.execute([*before, self.here.program("test_gpu"), "--no-colors", f"--test-case={name}"],
                                       min(each, left), env)
            why = ended.why() or not_one_passed(ended.out)
            if why and min(each, left) < each and "limit" in why:
                undone.append(name)
                return
            line = {"kind": "case", "name": name, "passed": not why, "seconds": round(ended.seconds, 2)}
            if before:
                line["under"] = before[2]
            if why:
                wrong.append((name, why))
                line |= {"why": why, "output": ended.tail(40)}
                self.check.say(f"   failed: {name}: {why}")
            self.check.emit(line)

        at_once = max(1, min(8, (os.cpu_count() or 2) // 2))
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, names))
        done = {"cases_passed": len(names) - len(wrong) - len(undone)}
        if wrong:
            raise Wrong(f"{len(wrong)} of {len(names)} cases failed: " + "; ".join(f"{n} ({why})" for n, why in wrong[:5]), **done,
                        cases_failed=[n for n, _ in wrong], cases_not_run=undone)
        if undone:
            why = f"ran into its limit of {limit:.3g} s with {len(undone)} of {len(names)} cases to do"
            raise Wrong(self.check.stopped or why, **done, cases_not_run=undone)
        return done

    # -- where the time goes ------------------------------------------------------------------------------------------------

    def speed(self):
        members = (1, 4) if self.tiny else (1, 64)
        for name, options in (("fp32", []), ("TF32", ["--tf32"]), ("bf16", ["--precision", "bf16"])):
            command = self.bench("bench_fusion", *self.small_model(), *options, "--members", ",".join(map(str, members)), "--json",
                                 *(["--rounds", "1", "--seconds", "0.02"] if self.tiny else ["--rounds", "2", "--seconds", "0.4"]))
            self.check.step(f"bench_fusion in {name}", command, 40, speeds(members), self.env)

    def kernels(self):
        if self.tiny:
            return
        ncu = machine.tool("ncu")
        for members in (64, 1):
            name = f"kernels of a step of {members} in TF32"
            if ncu is None:
                self.check.do(name, 1, lambda _: absent("there is no ncu"))
                continue
            steps = self.bench("bench_fusion", *self.small_model(), "--tf32", "--no-capture", "--members", str(members), "--steps", "4")
            command = [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", METRIC, *steps]
            found = self.check.step(name, command, 45, lambda ended: step_of(ended.out), self.env)
            if found:
                self.check.say(slowest(found))

    # -- memory, losses -----------------------------------------------------------------------------------------------------

    def memory(self, name, parts):
        size = ["--seconds", "0.01", "--cycles", "3"] if self.tiny else ["--seconds", "0.5", "--cycles", "100"]

        def judge(ended):
            found = objects(ended.out, least=len(parts))
            failed = [x["check"] for x in found if x["passed"] is not True]
            if failed:
                raise Wrong("failed: " + "; ".join(failed))
            return {"checks": [x["check"] for x in found]}

        self.check.step(name, self.bench("bench_memory", *size, "--only", ",".join(parts)), 50, judge, self.env)

    def losses(self):
        for kind in ("mlp", "cnn"):
            cpu = self.trained(f"{kind} on the CPU", kind, {"device": "cpu"})
            gpu = self.trained(f"{kind} on the GPU", kind, {"device": self.device})
            self.check.do(f"{kind}: losses of CPU and GPU agree", 5, lambda _: agree(cpu, gpu))
            if kind == "mlp":
                direct = self.trained(f"{kind} on the GPU without capture", kind, {"device": self.device, "capture": False})
                self.check.do(f"{kind}: losses of captured and other steps agree", 5, lambda _: agree(gpu, direct))

    def trained(self, step, kind, slot):
        path = self.here.scratch(step.replace(" ", "_") + ".json")
        with open(path, "w") as f:
            json.dump(experiment(kind, slot, self.tiny), f)
        command = [self.here.program("troupe"), "run", path, "--out", path + ".run", "--json"]
        found = self.check.step(step, command, 40, trained_losses, self.env)
        return found and found["losses"]


# -- judges ---------------------------------------------------------------------------------------------------------------


def nothing_to_do(why):
    raise Wrong(why)


def absent(why):
    raise Absent(why)


def diagnosis(ended):
    one = objects(ended.out)[-1]
    version = {x: one["libraries"].get(x, {}).get("version", "") for x in ("cuBLAS", "NVRTC", "CUDA driver", "CUDA runtime")}
    return {"cuda_status": one["cuda_status"], **version, "devices": [d["name"] for d in one["devices"]]}


def gpu_of(found):
    if found["cuda_status"] != "ok":
        raise Wrong(found["cuda_status"])
    if len(found["devices"]) < 2:
        raise Wrong("doctor lists no GPU")
    return {"gpus": found["devices"][1:]}


def speeds(members):
    """bench_fusion has measured these numbers of models, and nothing is nonsense."""

    def judge(ended):
        found = {x["members"]: x for x in objects(ended.out)}
        if set(found) != set(members):
            raise Wrong(f"it measured {sorted(found)} members at once, not {sorted(members)}")
        out = {}
        for k, x in found.items():
            pair = [x["fused_samples_per_second"], x["unfused_samples_per_second"]]
            if not all(math.isfinite(v) and v > 0 for v in pair):
                raise Wrong(f"{k} members: {pair} samples a second")
            out[str(k)] = {"fused": pair[0], "unfused": pair[1]}
        return {"samples_per_second": out}

    return judge


def listed(ended):
    """The names that doctest lists between two rules, as many as it says."""
    lines = [x.strip() for x in ended.out.splitlines()]
    rules = [i for i, x in enumerate(lines) if len(x) > 10 and set(x) == {"="}]
    told = re.search(r"passing the current filters: (\d+)", ended.out)
    names = [x for x in lines[rules[0] + 1:rules[-1]] if x] if len(rules) > 1 else []
    if not told or not names or int(told[1]) != len(names):
        raise Wrong("it lists no test cases")
    return {"cases": names}


def not_one_passed(out):
    """Why this is not the output of exactly one test case that passed; empty where it is."""
    told = re.search(r"test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed", out)
    if not told:
        return "it does not say which test cases passed"
    if [told[1], told[2], told[3]] != ["1", "1", "0"]:
        return f"{told[2]} of {told[1]} test cases passed"
    return ""


def experiment(kind, slot, tiny):
    """Losses of data without noise come near 0, where a comparison says nothing."""
    image = [8, 8, 1] if tiny else [28, 28, 1]
    workload = {"type": kind, "batch": 16 if tiny else 64, "data": {"type": "synthetic", "image": image, "noise": 3}}
    if tiny:
        workload |= {"hidden": [8]} if kind == "mlp" else {"conv": [{"filters": 2, "pool": 2}], "dense": [8]}
        workload["data"] |= {"train": 256, "test": 32}
    steps = 20 if tiny else 200
    return {"name": f"gpu_check_{kind}", "seed": 3, "slots": [slot], "sync": {"every_steps": steps // 4},
            "checkpoints": {"every_syncs": 0},
            "trainers": [{"name": "a", "count": 2, "workload": workload, "hyperparameters": {"lr": 0.02, "momentum": 0.9},
                          "stop_step": steps}]}


def trained_losses(ended):
    lines = objects(ended.out)
    if lines[-1].get("kind") != "result" or lines[-1]["outcome"] != "done":
        raise Wrong(f"the run ended as {lines[-1].get('outcome', 'nothing')}")
    losses = {}
    for line in lines:
        if line["kind"] == "sync_point":
            for t in line["trainers"]:
                losses[f"{line['index']} {t['name']}"] = t["loss"]
    if not losses:
        raise Wrong("the run had no sync point")
    return {"losses": losses}


def agree(one, other):
    if one is None or other is None:
        raise Wrong("one of the two runs failed")
    if one.keys() != other.keys():
        raise Wrong(f"{len(one)} losses of one and {len(other)} of the other")
    for k, x in [*one.items(), *other.items()]:
        if not isinstance(x, (int, float)) or not math.isfinite(x):
            raise Wrong(f"the loss of {k} is {x}", one=one, other=other)
    worst = max(abs(one[k] - other[k]) / max(1e-6, abs(one[k])) for k in one)
    if worst > TOLERANCE:
        raise Wrong(f"{len(one)} losses, the largest relative difference is {worst:.2e}, more than {TOLERANCE:g}", one=one,
                    other=other)
    return {"losses": len(one), "largest_difference": worst}
