"""Stand-ins for all that script/gpu-check starts: small programs that say what the real ones say on a machine with a GPU."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHECK = os.path.join(SOURCE, "script", "gpu-check")
sys.path.insert(0, os.path.join(SOURCE, "script"))
sys.dont_write_bytecode = True

CASES = ["a product is right", "a column sum is right"]

DOCTOR = {"kind": "doctor", "cuda_status": "ok", "devices": [{"name": "a CPU"}, {"name": "a GPU"}],
          "libraries": {"cuBLAS": {"version": "13.0.2"}, "NVRTC": {"version": "13.0"}, "CUDA driver": {"version": "13.0"},
                        "CUDA runtime": {"version": "13.0"}}}

FUSION = {"fused_samples_per_second": 2000.0, "unfused_samples_per_second": 1000.0, "flops_per_step": 1e9, "bytes_per_step": 1e6,
          "batch": 128, "copy_bytes_per_second": 4e12, "product_flops_per_second": 4e14}


def lines(*objects):
    return "\n".join(f"echo '{json.dumps(x, separators=(',', ':'))}'" for x in objects)


def ncu_table(step, steps):
    head = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",' \
           '"Section Name","Metric Name","Metric Unit","Metric Value"'
    rows = [head, "==PROF== Connected to process 12", '{"bench":"steps"}']
    for n, (name, unit, value) in enumerate(step * steps):
        rows.append(f'"{n}","12","bench_fusion","127.0.0.1","{name}","1","7","(256, 1, 1)","(4, 1, 64)","0","9.0",'
                    f'"Command line profiler metrics","gpu__time_duration.sum","{unit}","{value}"')
    return "\n".join(rows)


STEP = [("void troupe::gpu::internal::cuda::per_member_kernel<troupe::gpu::internal::cuda::begin_step_op>(long)", "ns", "1,500"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", "ns", "26000"),
        ("void troupe::gpu::internal::cuda::map_kernel<troupe::gpu::internal::cuda::sgd_apply_op<float> >(long, long)", "us", "65.5")]

# Of a run that goes on until it is told to end: two workers that end with their head, however that ends.
ENDLESS = """import os, signal, sys
gone, alive = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(alive)
        os.read(gone, 1)
        os._exit(0)
print('{"kind":"sync_point","index":0,"trainers":[]}', flush=True)
try:
    signal.pause()
except KeyboardInterrupt:
    sys.exit(1)
"""

HANG = f"exec {sys.executable} -S -E -c 'import signal; signal.pause()'"
WAYS = {"fails": "echo went wrong >&2\nexit 3", "breaks": """echo '{"broken": '""", "hangs": HANG, "missing": None}


class StandIns:
    """A folder with a stand-in for each program."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="gpu-check-test-")
        self.bin, self.tools = os.path.join(self.folder, "bin"), os.path.join(self.folder, "tools")
        os.mkdir(self.bin)
        os.mkdir(self.tools)
        endless = os.path.join(self.folder, "endless.py")
        with open(endless, "w") as f:
            f.write(ENDLESS)
        self.put("troupe", f"""case "$1 $2" in
"doctor "*) {lines(DOCTOR)} ;;
"run "*long-*) exec {sys.executable} -S -E {endless} ;;
"run "*) {lines({"kind": "sync_point", "index": 0, "trainers": [{"name": "a-0", "loss": 1.5}]},
                {"kind": "result", "outcome": "done"})} ;;
esac""")
        listed = "\n".join(f"echo '{x}'" for x in ["=" * 40, *CASES, "=" * 40])
        self.put("test_gpu", f"""case "$1" in
--list-test-cases) {listed}
echo "[doctest] unskipped test cases passing the current filters: {len(CASES)}" ;;
--no-colors) echo "[doctest] test cases:  1 |  1 passed | 0 failed | 80 skipped" ;;
esac""")
        # What it is asked for: --members 1,64
        self.put("bench_fusion", """members=1
while [ $# -gt 0 ]; do
  case "$1" in
  --help) exit 0 ;;
  --members) members=$2; shift ;;
  esac
  shift
done
IFS=,
for k in $members; do
""" + lines({**FUSION, "members": 4444}).replace("4444", "'$k'") + "\ndone")
        self.put("bench_memory", 'case "$1" in --help) exit 0 ;; esac\n'
                 + lines(*({"check": f"row {n}", "passed": True} for n in range(3))))
        self.put("nvidia-smi", "echo 'NVIDIA H200, 580.159.03, 600'", tool=True)
        self.put("compute-sanitizer", 'while [ "${1#/}" = "$1" ]; do shift; done\nexec "$@"', tool=True)
        table = os.path.join(self.folder, "table.csv")
        with open(table, "w") as f:
            f.write(ncu_table(STEP, 4) + "\n")
        self.put("ncu", f"while read -r line; do printf '%s\\n' \"$line\"; done <{table}", tool=True)
        # A Python with torch and jax: says so, and runs the peers.
        self.put("python", """case "$1" in
-c) echo '{"torch": true, "jax": true}'; exit 0 ;;
esac
while [ $# -gt 0 ]; do
  case "$1" in --members) members=$2 ;; esac
  shift
done
""" + lines({"members": 4444, "samples_per_second": 1600.0}).replace("4444", "'$members'"), tool=True)

    def path(self, name):
        return os.path.join(self.bin if os.path.exists(os.path.join(self.bin, name)) else self.tools, name)

    def put(self, name, script, tool=False):
        path = os.path.join(self.tools if tool else self.bin, name)
        with open(path, "w") as f:
            f.write("#!/bin/sh\n" + script + "\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def replace(self, name, way):
        path = self.path(name)
        if WAYS[way] is None:
            os.remove(path)
        else:
            self.put(name, WAYS[way], tool=path.startswith(self.tools))

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TROUPE_", "CUDA_", "LD_"))}
        return env | {"TROUPE_CHECK_TOOLS": self.tools, "TROUPE_CHECK_PYTHON": os.path.join(self.tools, "python")} | more

    def command(self, what, *options):
        self.result = os.path.join(self.folder, what + ".jsonl")
        return [sys.executable, CHECK, what, "--bin", self.bin, "--out", self.result, *options]

    def check(self, what, *options, **env):
        """(exit status, lines of the result)"""
        done = subprocess.run(self.command(what, *options), env=self.environment(**env), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = done.stdout
        return done.returncode, self.lines()

    def lines(self):
        with open(self.result) as f:
            return [json.loads(x, parse_constant=no_number) for x in f]


def script_of(path):
    """Of a stand-in, without its first line."""
    with open(path) as f:
        return f.read().split("\n", 1)[1]


def no_number(x):
    raise ValueError(f"{x} is no JSON")


def steps_of(found):
    return {x["name"]: x for x in found if x["kind"] == "step"}


def main():
    """As unittest's, but with status 77 where all tests were skipped."""
    program = unittest.main(exit=False, verbosity=2)
    r = program.result
    sys.exit(1 if not r.wasSuccessful() or r.testsRun == 0 else 77 if len(r.skipped) == r.testsRun else 0)
