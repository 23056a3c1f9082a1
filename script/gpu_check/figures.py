"""Many models at once beside PyTorch and JAX. What the aims name comes first: 64 and 1 at once, PyTorch's stacked products under a
graph."""
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import statistics
from contextlib import redirect_stdout

from . import machine
from .steps import Absent, Wrong, objects

ASK_PEERS = "import importlib.util as i, json; print(json.dumps({n: i.find_spec(n) is not None for n in ('torch', 'jax')}))"


class Figures:
    def __init__(self, check, here):
        self.check, self.here, self.device = check, here, here.device
        self.tiny = here.device == "cpu"
        self.model = "tiny" if self.tiny else "mlp"
        self.seconds = "0.02" if self.tiny else "1"
        self.env = here.environment()
        self.python = machine.peers_python()
        self.peers = {}
        self.results = {"TF32": {}, "fp32": {}, "bf16": {}}  # {members: {label: [samples a second]}}
        self.limits, self.work = None, {}

    def plan(self):
        """(what, math, members), what matters most first."""
        few, many = (1, 4) if self.tiny else (1, 64)
        best = "stacked" if self.tiny else "graph"
        yield from ((what, "TF32", k) for k in (many, few) for what in ("ours", best, "jax"))
        yield "limits", "TF32", 1
        yield from ((what, "fp32", many) for what in ("ours", best, "jax"))
        if self.tiny:
            return
        yield from ((what, "TF32", k) for k in (512, 8) for what in ("ours", best, "jax"))
        yield from (("ours", "bf16", k) for k in (64, 1))
        yield from ((what, "TF32", 64) for what in ("stacked", "vmap", "eager"))
        yield from ((what, "TF32", 1) for what in ("compile", "eager"))
        yield "join", "TF32", 64

    def all(self):
        self.libraries()
        found = self.check.step("peers", [self.python, "-c", ASK_PEERS], 60, lambda ended: objects(ended.out)[-1])
        self.peers = found or {}
        for what, math_mode, members in self.plan():
            self.one(what, math_mode, members)
        self.keep()

    def libraries(self):
        """As `run` finds them, where Troupe by itself does not."""
        if self.tiny or os.environ.get("TROUPE_CUDA_LIBRARIES"):
            return
        ended = self.check.execute([self.here.program("troupe"), "doctor", "--json"], 30, self.env)
        try:
            there = objects(ended.out)[-1]["libraries"]["cuBLAS"]["version"]
        except (Wrong, KeyError):
            return  # the first figure will say what is wrong
        if not there and (folders := machine.library_folders(self.check)):
            self.env["TROUPE_CUDA_LIBRARIES"] = os.pathsep.join(folders)
            self.check.emit({"kind": "libraries", "folders": folders})

    def one(self, what, math_mode, members):
        tf32 = ["--tf32"] if math_mode == "TF32" and not self.tiny else []
        names = {"ours": "Troupe", "jax": "JAX", "limits": "limits of the device", "join": "what a join costs"}
        name = names.get(what, "PyTorch " + what)
        name += "" if what == "limits" else f", {members} at once, {math_mode}"
        shape = ["--model", self.model, "--members", str(members)]
        if what in ("ours", "limits", "join"):
            more = {"ours": ["--rounds", "1"], "limits": ["--limits"], "join": ["--join"]}[what]
            precision = ["--precision", "bf16"] if math_mode == "bf16" else []
            command = [self.here.program("bench_fusion"), *shape, *more, *precision, *tf32, "--synthetic", "--device", self.device,
                       *(["--examples", "2000"] if self.tiny else []), "--seconds", self.seconds, "--json"]
            judge = {"ours": self.ours, "limits": self.limit, "join": lambda one, *_: one}[what]
            env, limit = self.env, 40
        else:
            module = "jax" if what == "jax" else "torch"
            if not self.peers.get(module):
                return self.check.do(name, 1, lambda _: self.no_peer(module))
            script = os.path.join(self.here.bench, "peers", f"fusion_{module}.py")
            command = [self.python, script, *shape, "--seconds", self.seconds, *tf32]
            if module == "torch":
                command += ["--mode", what, "--device", self.device, "--data", "random", "--processes", "1"]
            judge, env, limit = self.peer, None, 90 if what == "compile" else 60
        label = {"ours": "troupe", "jax": "jax vmap"}.get(what, "torch " + what)
        self.check.step(name, command, limit, lambda ended: judge(objects(ended.out)[-1], math_mode, members, label), env)

    def no_peer(self, module):
        raise Absent(f"{self.python} has no {module}")

    # -- what was measured ------------------------------------------------------------------------------------------------------

    def rate(self, one, key, math_mode, members, label):
        if one["members"] != members:
            raise Wrong(f"it measured {one['members']} at once")
        rate = one[key]
        if not (isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0):
            raise Wrong(f"{key} is {rate}")
        self.results[math_mode].setdefault(str(members), {}).setdefault(label, []).append(rate)
        return rate

    def ours(self, one, math_mode, members, label):
        self.work[self.model] = {k: one[k] for k in ("flops_per_step", "bytes_per_step", "batch")}
        return {k: self.rate(one, k + "_samples_per_second", math_mode, members, f"{label} {k}") for k in ("fused", "unfused")}

    def peer(self, one, math_mode, members, label):
        rate = self.rate(one, "samples_per_second", math_mode, members, label)
        ours = self.results[math_mode][str(members)].get("troupe fused")
        return {"samples_per_second": rate} | ({"troupe_fused_is": round(statistics.median(ours) / rate, 3)} if ours else {})

    def limit(self, one, *_):
        self.limits = {k: one[k] for k in ("copy_bytes_per_second", "product_flops_per_second")}
        return self.limits

    def keep(self):
        """Tables, also where the check was stopped, and the file that bench/fusion_compare --show draws."""
        compare = load(os.path.join(self.here.bench, "fusion_compare"))
        for math_mode, by_members in self.results.items():
            if not by_members:
                continue
            kept = {"device": self.device, "tf32": math_mode == "TF32", "limits": self.limits, "work": self.work, "rounds": 1,
                    "results": {self.model: dict(sorted(by_members.items(), key=lambda x: int(x[0])))}}
            text = io.StringIO()
            with redirect_stdout(text):
                compare.table(kept["results"])
                compare.against_limits(kept)
            self.check.say(f"\n{math_mode}:\n{text.getvalue()}")
            self.check.emit({"kind": "table", "math": math_mode, **kept})


def load(path):
    """A Python program as a module."""
    loader = importlib.machinery.SourceFileLoader("fusion_compare", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fusion_compare", loader))
    loader.exec_module(module)
    return module
