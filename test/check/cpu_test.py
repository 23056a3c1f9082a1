"""script/gpu-check itself, with the real programs, on the CPU: tiny models, the same steps."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from stand_ins import CHECK, main, steps_of

BIN = os.environ.get("TROUPE_TEST_BIN", "")


class OnTheCpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpu-check-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, what):
        result = os.path.join(self.folder, what + ".jsonl")
        env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")} | {"TROUPE_CHECK_DEVICE": "cpu"}
        # A Python that has no peers here.
        env["TROUPE_CHECK_PYTHON"] = os.path.join(self.folder, "python")
        with open(env["TROUPE_CHECK_PYTHON"], "w") as f:
            f.write("#!/bin/sh\necho '{}'\n")
        os.chmod(env["TROUPE_CHECK_PYTHON"], 0o755)
        done = subprocess.run([sys.executable, CHECK, what, "--bin", BIN, "--out", result], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        with open(result) as f:
            found = [json.loads(x) for x in f]
        self.assertEqual(done.returncode, 0, done.stdout)
        return steps_of(found), found

    def test_run_passes(self):
        by, found = self.check("run")
        self.assertEqual({x["outcome"] for x in by.values()}, {"passed"})
        for name in ("mlp: losses of CPU and GPU agree", "mlp: losses of captured and other steps agree",
                     "cnn: losses of CPU and GPU agree"):
            self.assertEqual(by[name]["losses"], 6)  # two trainers, three sync points
            self.assertEqual(by[name]["largest_difference"], 0)  # one device
        self.assertEqual(set(by["bench_fusion in fp32"]["samples_per_second"]), {"1", "4"})
        self.assertEqual(by["row 27: SIGKILL leaves nothing behind"]["workers"], 2)
        self.assertTrue(found[-1]["passed"])

    def test_figures_passes(self):
        by, found = self.check("figures")
        self.assertEqual({n for n, x in by.items() if x["outcome"] != "passed"},
                         {n for n in by if n.startswith(("PyTorch", "JAX"))})
        table = [x for x in found if x["kind"] == "table"][0]
        self.assertEqual(list(table["results"]["tiny"]), ["1", "4"])
        self.assertTrue(found[-1]["passed"])

    def test_every_model_has_made_three_steps_before_it_is_measured(self):
        done = subprocess.run([os.path.join(BIN, "bench_fusion"), "--model", "micro", "--members", "48", "--rounds", "1",
                               "--seconds", "1e-6", "--json"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreaterEqual(json.loads(done.stdout)["least_warm_up_steps"], 3)

    def test_cases_of_every_file_are_found(self):
        from gpu_check.run import CASE_FILES, listed
        from gpu_check.steps import Ended

        for file in CASE_FILES:
            done = subprocess.run([os.path.join(BIN, "test_gpu"), "--list-test-cases", "--no-colors", f"--source-file=*/{file}.cpp"],
                                  capture_output=True, text=True)
            self.assertGreater(len(listed(Ended([], 0, out=done.stdout))["cases"]), 0, file)

    def test_the_data_set_is_wanted_only_where_it_was_asked_for(self):
        name = "--test-case=Fashion-MNIST is read whole from the package dataset-fashion-mnist"
        for asked, status in (("0", 0), ("1", 1)):
            env = {**os.environ, "TROUPE_DATA_DIR": os.path.join(self.folder, "nowhere"), "TROUPE_REQUIRE_DATA": asked}
            done = subprocess.run([os.path.join(BIN, "test_gpu"), name], env=env, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, status, done.stdout)
            self.assertIn("nowhere/fashion-mnist", done.stdout)


if __name__ == "__main__":
    main()
