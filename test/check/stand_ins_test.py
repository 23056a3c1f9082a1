"""script/gpu-check with stand-ins for all that it starts: each of them fails in turn, and exit status and result have to say so."""
import json
import os
import signal
import shutil
import subprocess
import sys
import unittest

from stand_ins import CASES, CHECK, DOCTOR, HANG, SOURCE, WAYS, StandIns, lines, main, script_of, steps_of

# The steps of `run` that each program has a part in; what of it also ends well where it prints nonsense and status 0.
MEMORY = ["budgets and swapping", "captured steps, fusion, batches from the host", "states between slots, slots that open and close"]
TRAINED = ["mlp on the CPU", "mlp on the GPU", "mlp on the GPU without capture", "cnn on the CPU", "cnn on the GPU"]
LEFT = ["row 27: SIGINT leaves nothing behind", "row 27: SIGKILL leaves nothing behind"]
LISTED = [f"cases of {x}" for x in ("ops_test", "ops_training_test", "ops_layers_test", "ops_sequences_test", "gemm_test",
                                    "context_test", "capture_test", "cuda_source_test")]
SPEED = ["one model", "bench_fusion in fp32", "bench_fusion in TF32", "bench_fusion in bf16"]
KERNELS = ["kernels of a step of 64 in TF32", "kernels of a step of 1 in TF32"]
CHECKED = ["GPU test cases under memcheck", "races"]
RUN = {"troupe": ["doctor", *TRAINED, *LEFT], "test_gpu": LISTED, "bench_fusion": SPEED, "bench_memory": MEMORY,
       "nvidia-smi": ["nvidia-smi", *LEFT], "compute-sanitizer": CHECKED, "ncu": KERNELS}
# Without these a step has nothing to look at, and says so.
FOLLOW = {"troupe": ["mlp: losses of CPU and GPU agree", "mlp: losses of captured and other steps agree",
                     "cnn: losses of CPU and GPU agree"],
          "test_gpu": ["GPU test cases", *CHECKED]}
TOOLS = ("nvidia-smi", "compute-sanitizer", "ncu")
SAYS = {"fails": "exit status 3: went wrong", "missing": "cannot be started: No such file", "hangs": "ran into its limit of 0.3 s"}


class Case(unittest.TestCase):
    def setUp(self):
        self.there = StandIns()
        self.addCleanup(shutil.rmtree, self.there.folder)

    def result_of(self, *args, **env):
        status, found = self.there.check(*args, **env)
        self.assertEqual(found[0]["kind"], "start")
        self.assertEqual(found[-1]["kind"], "summary", self.there.said)
        by = steps_of(found)
        for key, outcome in (("failed", "failed"), ("not_run", "not run"), ("skipped", "skipped")):
            self.assertEqual(sorted(found[-1][key]), sorted(n for n, x in by.items() if x["outcome"] == outcome))
        good = not found[-1]["failed"] and not found[-1]["not_run"]
        self.assertEqual(found[-1]["passed"], good)
        self.assertEqual(status, 0 if good else 1, self.there.said)
        for x in by.values():
            self.assertEqual("why" in x, x["outcome"] != "passed", x)
        return by, found


class Run(Case):
    def test_all_pass(self):
        by, found = self.result_of("run")
        self.assertEqual([x for x in by.values() if x["outcome"] != "passed"], [])
        for steps in RUN.values():
            self.assertLessEqual(set(steps), set(by))
        self.assertEqual(by["GPU test cases"]["cases_passed"], len(LISTED) * len(CASES))
        kernels = by[KERNELS[0]]
        self.assertEqual([x["kernel"] for x in kernels["kernels"]],
                         ["begin_step, per_member_kernel", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "sgd_apply, map_kernel"])
        self.assertEqual(kernels["sum_us"], 93.0)
        self.assertEqual([x["name"] for x in found if x.get("under") == "racecheck"][0], CASES[1])
        # What matters most first.
        order = list(by)
        wanted = ["doctor", "one model", "GPU test cases", CHECKED[0], SPEED[1], KERNELS[0], MEMORY[0]]
        self.assertEqual(sorted(wanted, key=order.index), wanted)

    def one_by_one(self, program):
        for way in WAYS:
            with self.subTest(program=program, way=way):
                self.setUp()
                self.there.replace(program, way)
                steps = RUN[program] + ([f"{program} starts"] if program not in TOOLS else [])
                limits = dict.fromkeys(steps, 0.3) if way == "hangs" else {}
                by, _ = self.result_of("run", TROUPE_CHECK_LIMITS=json.dumps(limits))
                if way == "missing" and program in TOOLS:
                    skipped = {n for n, x in by.items() if x["outcome"] == "skipped"}
                    self.assertEqual(skipped, set(steps) - set(LEFT))
                    self.assertIn(f"there is no {program}", by[steps[0]]["why"])
                    self.assertEqual(by[LEFT[0]]["outcome"], "passed")
                    continue
                if way == "breaks":  # --help says nothing that could be wrong
                    steps = [x for x in steps if not x.endswith(" starts")]
                failed = {n for n, x in by.items() if x["outcome"] == "failed"}
                self.assertEqual(failed, set(steps) | set(FOLLOW.get(program, [])))
                for step in steps:
                    why = by[step]["why"]
                    if way in SAYS and not (step in LEFT and way == "fails"):
                        self.assertIn(SAYS[way], why, step)
                    self.assertTrue(by[step].get("command") or step in CHECKED + LEFT, by[step])

    def test_troupe(self):
        self.one_by_one("troupe")

    def test_test_gpu(self):
        self.one_by_one("test_gpu")

    def test_bench_fusion(self):
        self.one_by_one("bench_fusion")

    def test_bench_memory(self):
        self.one_by_one("bench_memory")

    def test_nvidia_smi(self):
        self.one_by_one("nvidia-smi")

    def test_compute_sanitizer(self):
        self.one_by_one("compute-sanitizer")

    def test_ncu(self):
        self.one_by_one("ncu")


class Details(Case):
    def test_a_case_that_fails_is_named_and_the_others_are_run(self):
        good = script_of(self.there.path("test_gpu"))
        self.there.put("test_gpu", f"case \"$*\" in *'{CASES[1]}'*) echo 'an illegal address' >&2; exit 1 ;; esac\n" + good)
        by, found = self.result_of("run")
        self.assertIn(CASES[1], by["GPU test cases"]["why"])
        self.assertEqual(set(by["GPU test cases"]["cases_failed"]), {CASES[1]})
        self.assertEqual(by["GPU test cases"]["cases_passed"], len(LISTED) * (len(CASES) - 1))
        line = [x for x in found if x["kind"] == "case" and not x["passed"]][0]
        self.assertIn("an illegal address", line["why"])
        self.assertEqual(line["output"], ["an illegal address"])

    def test_what_compute_sanitizer_finds_in_one_case_keeps_no_other_from_it(self):
        good = script_of(self.there.path("compute-sanitizer"))
        found = f"case \"$*\" in *'{CASES[0]}'*) echo 'ERROR SUMMARY: 1 error' >&2; exit 99 ;; esac\n"
        self.there.put("compute-sanitizer", found + good, tool=True)
        by, _ = self.result_of("run")
        self.assertEqual(by["GPU test cases"]["outcome"], "passed")
        checked = by["GPU test cases under memcheck"]
        self.assertIn(f"{CASES[0]} (exit status 99: ERROR SUMMARY: 1 error)", checked["why"])
        self.assertEqual(checked["cases_passed"], len(LISTED) * (len(CASES) - 1))

    def test_a_case_that_is_none_is_no_pass(self):
        good = script_of(self.there.path("test_gpu"))
        self.there.put("test_gpu", good.replace("cases:  1 |  1 passed", "cases:  0 |  0 passed"))
        by, _ = self.result_of("run")
        self.assertEqual(by["GPU test cases"]["outcome"], "failed")

    def test_a_memory_check_that_failed_is_named_although_the_status_is_0(self):
        self.there.put("bench_memory", 'case "$1" in --help) exit 0 ;; esac\n'
                       + lines(*({"check": f"row {n}", "passed": n != 25} for n in (5, 25, 28))))
        by, _ = self.result_of("run")
        self.assertEqual(by[MEMORY[0]]["why"], "failed: row 25")

    def test_losses_that_differ_or_are_no_numbers_fail(self):
        good = script_of(self.there.path("troupe"))
        for loss, why in (("1.504", "the largest relative difference is 2.67e-03"), ("NaN", "is nan"), ("null", "is None")):
            self.there.put("troupe", f"case \"$*\" in *on_the_GPU*) loss={loss} ;; *) loss=1.5 ;; esac\n"
                           + good.replace("1.5", "'$loss'"))
            by, _ = self.result_of("run")
            self.assertEqual(by["mlp: losses of CPU and GPU agree"]["outcome"], "failed", loss)
            self.assertIn(why, by["cnn: losses of CPU and GPU agree"]["why"])
            self.assertEqual(by["mlp: losses of captured and other steps agree"]["outcome"], "passed" if loss == "1.504" else "failed")

    def test_without_a_gpu_it_stops_after_doctor_with_one_line(self):
        good = script_of(self.there.path("troupe"))
        self.there.put("troupe", good.replace('"cuda_status":"ok"', '"cuda_status":"no NVIDIA driver is installed"'))
        by, found = self.result_of("run")
        self.assertEqual(by["a GPU can be used"]["why"], "no NVIDIA driver is installed")
        self.assertEqual(found[-1]["failed"], ["a GPU can be used"])
        self.assertIn("one model", found[-1]["not_run"])
        self.assertEqual(found[-1]["stopped"], "no GPU can be used")

    def test_libraries_of_a_python_are_found_and_told_to_our_programs_alone(self):
        site = os.path.join(self.there.folder, "site")
        folder = os.path.join(site, "nvidia", "cu13", "lib")
        os.makedirs(folder)
        for name in ("libcublas.so.13", "libnvrtc.so.13"):
            open(os.path.join(folder, name), "w").close()
        none = json.loads(json.dumps(DOCTOR))
        none["libraries"]["cuBLAS"]["version"] = none["libraries"]["NVRTC"]["version"] = ""
        good = script_of(self.there.path("troupe"))
        self.there.put("troupe", f"case \"$TROUPE_CUDA_LIBRARIES $1\" in \" doctor\") {lines(none)}; exit ;; esac\n" + good)
        seen = os.path.join(self.there.folder, "seen")
        for name in ("nvidia-smi", "bench_fusion", "ncu", "python"):
            path = self.there.path(name)
            rest = script_of(path)
            self.there.put(name, f"echo '{name}' \"${{LD_LIBRARY_PATH-none}} ${{TROUPE_CUDA_LIBRARIES-none}}\" >>{seen}\n" + rest,
                           tool=path.startswith(self.there.tools))
        where = {"PYTHONPATH": site, "TROUPE_CHECK_PYTHON": sys.executable}
        by, _ = self.result_of("run", **where)
        self.assertEqual(by["cuBLAS and NVRTC are found"]["TROUPE_CUDA_LIBRARIES"], [os.path.realpath(folder)])
        told = self.read(seen)
        self.assertIn(f"bench_fusion none {os.path.realpath(folder)}", told)
        self.assertEqual({x for x in told if x.startswith("nvidia-smi")}, {"nvidia-smi none none"})
        self.assertTrue(all(x.split()[1] == "none" for x in told), told)

        # figures finds them too, and the peers see nothing of it.
        peer = os.path.join(self.there.folder, "peer")
        os.rename(os.path.join(self.there.tools, "python"), peer)
        with open(os.path.join(self.there.tools, "python"), "w") as f:
            f.write(f"#!/bin/sh\ncase \"$2\" in *site*) exec {sys.executable} \"$@\" ;; esac\nexec {peer} \"$@\"\n")
        os.chmod(os.path.join(self.there.tools, "python"), 0o755)
        os.remove(seen)
        self.result_of("figures", PYTHONPATH=site)
        told = self.read(seen)
        self.assertEqual({x for x in told if x.startswith("python")}, {"python none none"})
        self.assertIn(f"bench_fusion none {os.path.realpath(folder)}", told)

    @staticmethod
    def read(path):
        with open(path) as f:
            return set(f.read().splitlines())

    def test_told_to_stop_it_kills_what_runs_and_sums_up(self):
        fifo = os.path.join(self.there.folder, "fifo")
        os.mkfifo(fifo)
        self.there.put("bench_fusion", f"case \"$1\" in --help) exit 0 ;; esac\nexec 7>{fifo}\n{HANG}")
        check = subprocess.Popen(self.there.command("run"), env=self.there.environment(), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL)
        with open(fifo, "rb") as alive:  # opens once the program has it open
            before = steps_of(self.there.lines())  # whole lines
            self.assertEqual(before["doctor"]["outcome"], "passed")
            self.assertNotIn("one model", before)
            check.send_signal(signal.SIGTERM)
            self.assertEqual(alive.read(), b"")  # its last holder is gone
        self.assertEqual(check.wait(), 1)
        found = self.there.lines()
        by = steps_of(found)
        self.assertEqual(by["one model"]["why"], "stopped by SIGTERM")
        self.assertEqual(by["budgets and swapping"]["outcome"], "not run")
        self.assertEqual(found[-1]["stopped"], "stopped by SIGTERM")
        self.assertFalse(found[-1]["complete"])

    def test_without_time_nothing_is_run_and_nothing_passed(self):
        by, found = self.result_of("run", "--seconds", "1e-9")
        self.assertEqual({x["outcome"] for x in by.values()}, {"not run"})
        self.assertFalse(found[-1]["complete"])

    def test_wrong_use_is_status_2(self):
        for options in ([], ["measure"], ["run", "--bin"]):
            done = subprocess.run([sys.executable, CHECK, *options], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, options)
        done = subprocess.run([sys.executable, CHECK, "run", "--bin", "/nowhere"], capture_output=True, text=True,
                              cwd=self.there.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nowhere", done.stderr)
        for limits in ("{", "[]", '{"doctor": "x"}'):
            done = subprocess.run(self.there.command("run"), env=self.there.environment(TROUPE_CHECK_LIMITS=limits), capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 2, limits)
            self.assertIn("TROUPE_CHECK_LIMITS", done.stderr)
        self.assertEqual(os.listdir(self.there.folder).count("gpu-check.jsonl"), 0)


class Figures(Case):
    FIRST = ["Troupe, 64 at once, TF32", "PyTorch graph, 64 at once, TF32", "JAX, 64 at once, TF32", "Troupe, 1 at once, TF32",
             "PyTorch graph, 1 at once, TF32", "JAX, 1 at once, TF32"]

    def test_all_pass(self):
        by, found = self.result_of("figures")
        self.assertEqual([x for x in by.values() if x["outcome"] != "passed"], [])
        self.assertEqual([n for n in by if n != "peers"][:6], self.FIRST)
        self.assertEqual(by["PyTorch graph, 64 at once, TF32"]["troupe_fused_is"], 1.25)
        tables = {x["math"]: x for x in found if x["kind"] == "table"}
        self.assertEqual(set(tables), {"TF32", "fp32", "bf16"})
        self.assertEqual(tables["TF32"]["results"]["mlp"]["64"]["jax vmap"], [1600.0])
        self.assertEqual(list(tables["TF32"]["results"]["mlp"]), ["1", "8", "64", "512"])
        self.assertIn("torch graph", self.there.said)
        shown = subprocess.run([sys.executable, os.path.join(SOURCE, "bench", "fusion_compare"), "--show", self.there.result],
                               capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("TF32:", shown.stdout)
        self.assertIn("jax vmap", shown.stdout)

    def one_by_one(self, program, is_of):
        for way in WAYS:
            with self.subTest(program=program, way=way):
                self.setUp()
                all_steps = [n for n in self.result_of("figures")[0] if is_of(n)]
                self.assertTrue(all_steps)
                self.there.replace(program, way)
                limits = dict.fromkeys(all_steps, 0.3) if way == "hangs" else {}
                by, _ = self.result_of("figures", TROUPE_CHECK_LIMITS=json.dumps(limits))
                # Where it cannot be asked what it has, there are no peers to measure.
                failed = ["peers"] if program == "python" else all_steps
                self.assertEqual({n for n, x in by.items() if x["outcome"] == "failed"}, set(failed))
                for step in failed:
                    if way in SAYS:
                        self.assertIn(SAYS[way], by[step]["why"])

    def test_bench_fusion(self):
        self.one_by_one("bench_fusion", lambda n: n.startswith(("Troupe", "limits", "what a join")))

    def test_python(self):
        self.one_by_one("python", lambda n: n == "peers" or n.startswith(("PyTorch", "JAX")))

    def test_a_peer_that_fails(self):
        for way, script in WAYS.items():
            if script is None:
                continue
            with self.subTest(way=way):
                self.setUp()
                good = script_of(self.there.path("python"))
                self.there.put("python", f"case \"$1\" in *fusion_jax.py) {script}\nexit ;; esac\n" + good, tool=True)
                mine = [f"JAX, {k} at once, TF32" for k in (64, 1, 512, 8)] + ["JAX, 64 at once, fp32"]
                limits = dict.fromkeys(mine, 0.3) if way == "hangs" else {}
                by, _ = self.result_of("figures", TROUPE_CHECK_LIMITS=json.dumps(limits))
                self.assertEqual({n for n, x in by.items() if x["outcome"] == "failed"}, set(mine))

    def test_peers_that_are_not_there_are_skipped(self):
        good = script_of(self.there.path("python"))
        self.there.put("python", good.replace('"torch": true', '"torch": false'), tool=True)
        by, found = self.result_of("figures")
        self.assertTrue(all(x["outcome"] == "skipped" for n, x in by.items() if n.startswith("PyTorch")))
        self.assertEqual(by["JAX, 64 at once, TF32"]["outcome"], "passed")
        self.assertTrue(found[-1]["passed"])


if __name__ == "__main__":
    main()
