"""What script/gpu-check pack makes: each program starts without the libraries of the machine that built it."""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from stand_ins import SOURCE, main

from gpu_check import pack
from gpu_check.steps import Wrong

BUILD = os.environ.get("TROUPE_TEST_BUILD", "")


def hidden(files, command):
    """Runs a command where each of these files is an empty one."""
    empty = os.path.join(tempfile.gettempdir(), f"gpu-check-empty-{os.getpid()}")
    open(empty, "w").close()
    try:
        mounts = "".join(f'mount --bind "{empty}" "{f}" || exit 99\n' for f in files)
        return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh", *command],
                              capture_output=True, text=True)
    finally:
        os.remove(empty)


class Staged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="gpu-check-pack-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.about = pack.stage(SOURCE, BUILD, cls.folder)
        cls.system = {}
        for name in pack.PROGRAMS:
            cls.system |= pack.needs(os.path.join(BUILD, "bin", name))

    def test_it_names_what_it_needs_and_carries_all_but_the_runtime(self):
        with open(os.path.join(self.folder, pack.MANIFEST)) as f:
            self.assertEqual(json.load(f), self.about)
        carried = set()
        for name, needed in self.about["programs"].items():
            self.assertEqual(set(needed["carried"] + needed["of_the_machine"]), set(pack.needs(os.path.join(BUILD, "bin", name))))
            self.assertTrue(all(pack.RUNTIME.match(x) for x in needed["of_the_machine"]), needed)
            carried |= set(needed["carried"])
        self.assertEqual(set(os.listdir(os.path.join(self.folder, "lib"))), carried)
        self.assertIn("libz.so.1", carried)
        self.assertFalse([x for x in carried if x.startswith(("libc.", "libm.", "libstdc++", "libgcc_s", "ld-linux", "libpthread"))])
        self.assertRegex(self.about["runtime"]["GLIBC"], r"^2\.\d+$")
        self.assertTrue(self.about["commit"])

    def test_each_program_starts_with_the_systems_libraries_hidden(self):
        if hidden([], ["true"]).returncode != 0:
            self.skipTest("no namespace can be made here (unshare --user --mount)")
        files = sorted({os.path.realpath(f) for x, f in self.system.items() if not pack.RUNTIME.match(x)})
        for name in pack.PROGRAMS:
            program = os.path.join(self.folder, "bin", name)
            done = hidden(files, [program, "--help"])
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
            # They are hidden: without the libraries beside it, it does not start.
            alone = os.path.join(self.folder, "elsewhere", "bin", name)
            os.makedirs(os.path.dirname(alone), exist_ok=True)
            os.rename(program, alone)
            done = hidden(files, [alone, "--help"])
            os.rename(alone, program)
            self.assertEqual(done.returncode, 127, name)
            self.assertIn("error while loading shared libraries", done.stderr)

    def test_a_library_that_is_left_out_is_noticed(self):
        self.assertIsNone(pack.misplaced(self.folder, "troupe"))
        gone = os.path.join(self.folder, "lib", "libz.so.1")
        os.rename(gone, gone + ".away")
        self.addCleanup(os.rename, gone + ".away", gone)
        self.assertEqual(pack.misplaced(self.folder, "troupe")[0], "libz.so.1")

    def test_unpacked_it_uses_its_own_programs_and_packs_nothing(self):
        command = [sys.executable, os.path.join(self.folder, "gpu-check")]
        result = os.path.join(self.folder, "result.jsonl")
        done = subprocess.run([*command, "run", "--seconds", "1e-9", "--out", result], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        with open(result) as f:
            found = [json.loads(x) for x in f]
        self.assertEqual(found[0]["commit"], self.about["commit"])
        self.assertEqual(found[0]["architectures"], self.about["architectures"])
        self.assertIn("troupe starts", found[-1]["not_run"])
        done = subprocess.run([*command, "pack", "x.tar.xz"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("needs the source tree", done.stderr)


class Archive(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpu-check-pack-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = os.path.join(self.folder, "x.tar.xz")

    def stage(self, root, tree, folder):
        os.mkdir(os.path.join(folder, "bin"))
        with open(os.path.join(folder, "bin", "troupe"), "wb") as f:
            f.write(os.urandom(5000))
        os.chmod(os.path.join(folder, "bin", "troupe"), 0o755)
        return {"commit": "abc", "architectures": ["90-real"], "runtime": {"GLIBC": "2.36"},
                "programs": {"troupe": {"carried": ["libz.so.1"], "of_the_machine": ["libc.so.6"]}}}

    def test_python_alone_unpacks_it(self):
        original, pack.stage = pack.stage, self.stage
        self.addCleanup(setattr, pack, "stage", original)
        self.assertEqual(pack.pack(SOURCE, self.file, "anywhere"), 0)
        subprocess.run([sys.executable, "-m", "tarfile", "-e", self.file, os.path.join(self.folder, "out")], check=True, env={})
        program = os.path.join(self.folder, "out", "bin", "troupe")
        self.assertEqual(os.path.getsize(program), 5000)
        self.assertTrue(os.access(program, os.X_OK))
        with tarfile.open(self.file) as tar:
            self.assertEqual({x.uname for x in tar}, {""})

    def test_one_that_is_too_large_is_refused_and_does_not_stay(self):
        original, pack.stage = pack.stage, self.stage
        self.addCleanup(setattr, pack, "stage", original)
        with self.assertRaisesRegex(pack.Refused, "more than the 4000"):
            pack.pack(SOURCE, self.file, "anywhere", most=4000)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_build_that_is_not_there_is_refused_by_its_path(self):
        with self.assertRaisesRegex(pack.Refused, "/nowhere/bin/troupe is not there"):
            pack.stage(SOURCE, "/nowhere", self.folder)

    def test_an_old_C_library_is_told_before_anything_is_started(self):
        pack.suits({"runtime": {"GLIBC": "2.5"}})
        with self.assertRaisesRegex(Wrong, r"need glibc 99\.1, this machine has 2\."):
            pack.suits({"runtime": {"GLIBC": "99.1"}})

    def test_only_the_C_and_cplusplus_runtime_is_left_to_the_machine(self):
        for name in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2",
                     "librt.so.1", "linux-vdso.so.1"):
            self.assertTrue(pack.RUNTIME.match(name), name)
        for name in ("libcrypto.so.3", "libz.so.1", "libgomp.so.1", "libOpenCL.so.1", "libdnnl.so.2", "libcaf_core.so.0.17.6"):
            self.assertFalse(pack.RUNTIME.match(name), name)


if __name__ == "__main__":
    main()
