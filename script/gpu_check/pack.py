"""One archive with all that a machine with a GPU needs besides a driver, CUDA's libraries and the C runtime."""
import json
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile

PROGRAMS = ("troupe", "test_gpu", "bench_fusion", "bench_memory")
# The C and C++ runtime is the machine's own: its loader, its libc and what belongs to them go together.
RUNTIME = re.compile(r"^(ld-linux-x86-64|libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|linux-vdso)\.so(\.\d+)*$")
MOST_BYTES = 25_000_000
MANIFEST = "manifest.json"


class Refused(Exception):
    pass


def manifest(folder):
    """Of an unpacked pack; None in a source tree."""
    try:
        with open(os.path.join(folder, MANIFEST)) as f:
            return json.load(f)
    except OSError:
        return None


def commit(root):
    """With "-dirty" where the tree differs from it."""
    try:
        done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
                              capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def call(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise Refused(f"{command[0]} cannot be started: {e.strerror}") from None
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)} failed:\n{done.stderr[-2000:] or done.stdout[-2000:]}")
    return done.stdout


def build(root, arch):
    """For one architecture, in a tree of its own. Returns that."""
    tree = os.path.join(root, "build", "gpu-check")
    env = {**os.environ, "PATH": os.environ.get("PATH", "") + os.pathsep + "/usr/local/cuda/bin"}
    for command in (["cmake", "-S", root, "-B", tree, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTROUPE_CUDA=ON",
                     f"-DCMAKE_CUDA_ARCHITECTURES={arch}-real", "-DTROUPE_BUILD_TESTS=ON", "-DTROUPE_BUILD_SAMPLES=OFF"],
                    ["cmake", "--build", tree, "--target", *PROGRAMS]):
        if subprocess.run(command, env=env).returncode != 0:
            raise Refused(f"{' '.join(command)} failed")
    return tree


# -- what a program needs -------------------------------------------------------------------------------------------------


def needs(program):
    """{library: its file} of all that the loader takes for it, what libraries need too."""
    out = {}
    for line in call("ldd", program).splitlines():
        if found := re.match(r"\s*(\S+) => (not found|/\S+)", line):
            if found[2] == "not found":
                raise Refused(f"{program} needs {found[1]}, which is not on this machine")
            out[found[1]] = found[2]
    return out


def versions(files):
    """The newest versions of the C and C++ runtime that any of these files needs, {"GLIBC": "2.36", …}."""
    newest = {}
    for file in files:
        for name, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)", call("readelf", "--version-info", "--wide", file)):
            key = tuple(map(int, version.split(".")))
            newest[name] = max(newest.get(name, ()), key)
    return {k: ".".join(map(str, v)) for k, v in sorted(newest.items())}


def suits(packed):
    """On the other machine: whether its C library is new enough."""
    from .steps import Wrong

    here = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
    wanted = packed["runtime"]["GLIBC"]
    if [*map(int, here.split("."))] < [*map(int, wanted.split("."))]:
        raise Wrong(f"the programs need glibc {wanted}, this machine has {here}")
    return {"glibc": here, "needed": wanted}


# -- packing --------------------------------------------------------------------------------------------------------------


def stage(root, tree, folder):
    """The pack as a folder."""
    for sub in ("bin", "lib", "gpu_check", "bench/peers"):
        os.makedirs(os.path.join(folder, sub), exist_ok=True)
    libraries, programs = {}, {}
    for name in PROGRAMS:
        source, packed = os.path.join(tree, "bin", name), os.path.join(folder, "bin", name)
        if not os.path.exists(source):
            raise Refused(f"{source} is not there: build it first")
        wanted = needs(source)
        call("strip", "-o", packed, source)
        if not re.search(r"\(RPATH\).*\$ORIGIN/\.\./lib\b", call("readelf", "--dynamic", packed)):
            raise Refused(f"{source} does not look for libraries beside itself first (troupe_portable in cmake/TroupeModule.cmake)")
        programs[name] = {"carried": sorted(x for x in wanted if not RUNTIME.match(x)),
                          "of_the_machine": sorted(x for x in wanted if RUNTIME.match(x))}
        libraries |= {x: file for x, file in wanted.items() if not RUNTIME.match(x)}
    for library, file in libraries.items():
        shutil.copyfile(file, os.path.join(folder, "lib", library))
    for name in PROGRAMS:
        if elsewhere := misplaced(folder, name):
            raise Refused(f"{name} takes {elsewhere[0]} from {elsewhere[1]}, not from the pack")
    script = os.path.join(root, "script")
    shutil.copy(os.path.join(script, "gpu-check"), folder)
    for file in sorted(os.listdir(os.path.join(script, "gpu_check"))):
        if file.endswith(".py"):
            shutil.copy(os.path.join(script, "gpu_check", file), os.path.join(folder, "gpu_check"))
    shutil.copy(os.path.join(root, "bench", "fusion_compare"), os.path.join(folder, "bench"))
    for peer in ("fusion_torch.py", "fusion_jax.py", "train_torch.py"):
        shutil.copy(os.path.join(root, "bench", "peers", peer), os.path.join(folder, "bench", "peers"))
    packed_files = [os.path.join(folder, "bin", x) for x in PROGRAMS] + [os.path.join(folder, "lib", x) for x in libraries]
    about = {"commit": commit(root), "architectures": architectures(tree), "programs": programs, "runtime": versions(packed_files)}
    with open(os.path.join(folder, MANIFEST), "w") as f:
        json.dump(about, f, indent=1)
    return about


def misplaced(folder, name):
    """(library, file) that the packed program takes from elsewhere, the runtime apart."""
    for library, file in needs(os.path.join(folder, "bin", name)).items():
        if not RUNTIME.match(library) and os.path.dirname(os.path.realpath(file)) != os.path.realpath(os.path.join(folder, "lib")):
            return library, file
    return None


def architectures(tree):
    with open(os.path.join(tree, "CMakeCache.txt")) as f:
        found = re.search(r"^CMAKE_CUDA_ARCHITECTURES:\w+=(.*)$", f.read(), re.MULTILINE)
    return found[1].split(";") if found else []


def compress(folder, file):
    """The dictionary spans all programs, which have much in common."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 1 << 26}]
    partial = file + ".partial"
    try:
        with lzma.open(partial, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
            for name in sorted(os.listdir(folder)):
                tar.add(os.path.join(folder, name), name, filter=nobodys)
        os.replace(partial, file)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
    return os.path.getsize(file)


def nobodys(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def pack(root, file, tree, most=MOST_BYTES):
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        about = stage(root, tree, folder)
        unpacked = sum(os.path.getsize(os.path.join(at, x)) for at, _, files in os.walk(folder) for x in files)
        size = compress(folder, file)
    print(f"packed commit {about['commit']} for architectures {' '.join(about['architectures']) or 'unknown'}: "
          f"{size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked")
    for name, needed in about["programs"].items():
        print(f"{name} brings {' '.join(needed['carried'])}; needs {' '.join(needed['of_the_machine'])}")
    print("needs " + ", ".join(f"{k} {v}" for k, v in about["runtime"].items()))
    if size > most:
        os.remove(file)
        raise Refused(f"{size} bytes are more than the {most} that a pack may have")
    return 0
