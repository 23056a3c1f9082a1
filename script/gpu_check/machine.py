"""What there is on the machine: tools, CUDA's libraries, processes, the GPU's memory."""
import glob
import json
import os
import shutil
import sys
import time

from .steps import Wrong

LIBRARIES = ("libcublas.so.13", "libnvrtc.so.13")


def tool(name):
    """A program of NVIDIA's, or None."""
    given = os.environ.get("TROUPE_CHECK_TOOLS")
    if given is not None:
        return shutil.which(name, path=given)
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    more = [home + "/bin", *sorted(glob.glob("/opt/nvidia/nsight-compute/*"), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(more))


def peers_python():
    return os.environ.get("TROUPE_CHECK_PYTHON") or shutil.which("python3") or sys.executable


ASK_FOLDERS = """
import glob, json, os, site, sys
places = list(sys.path) + (site.getsitepackages() if hasattr(site, "getsitepackages") else []) + [site.getusersitepackages()]
print(json.dumps(sorted({os.path.realpath(x) for p in places for x in glob.glob(os.path.join(p or ".", "nvidia", "*", "lib"))})))
"""


def library_folders(check, wanted=LIBRARIES):
    """Folders that have CUDA's libraries and are not among those where Troupe looks by itself: of Python's packages, of toolkits
    elsewhere; fewest first."""
    found = []

    def add(folders):
        for folder in folders:
            if folder not in found and any(os.path.exists(os.path.join(folder, x)) for x in wanted):
                found.append(folder)

    def all_there():
        return all(any(os.path.exists(os.path.join(f, x)) for f in found) for x in wanted)

    for python in dict.fromkeys([peers_python(), sys.executable]):
        ended = check.execute([python, "-c", ASK_FOLDERS], 20)
        if not ended.why():
            try:
                add(json.loads(ended.out))
            except ValueError:
                pass
        if all_there():
            return found
    for pattern in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/x86_64-linux-gnu", "/opt/*/lib64",
                    "/opt/*/lib"):
        add(sorted(glob.glob(pattern)))
    if not all_there():
        add(searched(["/opt", "/usr", "/root", "/home"], wanted, seconds=10))
    return found


def searched(roots, names, seconds):
    """The folders that have one of these files, as far as they are found in so much time."""
    end, out = time.monotonic() + seconds, []
    for root in roots:
        for folder, _, files in os.walk(root):
            if any(n in files for n in names):
                out.append(folder)
            if time.monotonic() > end:
                return out
    return out


def hold_device():
    """Keeps the first GPU initialised as long as the check runs: without a persistence daemon each process would do that anew. Changes
    no setting."""
    try:
        return os.open("/dev/nvidia0", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def gpu_state(check, limit=15):
    """Of the first GPU, {"gpu": …, "driver": …, "used_mib": …}; None where there is no nvidia-smi."""
    smi = tool("nvidia-smi")
    if smi is None:
        return None
    command = [smi, "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader,nounits"]
    ended = check.execute(command, limit)
    if ended.why():
        raise Wrong("nvidia-smi: " + ended.why(), command=command, output=ended.tail())
    fields = [x.strip() for x in (ended.out.splitlines() or [""])[0].split(",")]
    if len(fields) != 3 or not fields[2].isdigit():
        raise Wrong(f"nvidia-smi does not tell name, driver and memory: {ended.out[:100]!r}", command=command)
    return {"gpu": fields[0], "driver": fields[1], "used_mib": int(fields[2])}


# -- processes, by /proc alone ------------------------------------------------------------------------------------------


def _stat(pid):
    """(parent, state, start time); None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[0], fields[19]


def children_of(pid):
    """{pid: start time}"""
    out = {}
    for name in os.listdir("/proc"):
        stat = _stat(name) if name.isdigit() else None
        if stat and stat[0] == pid and stat[1] != "Z":
            out[int(name)] = stat[2]
    return out


def still_there(processes):
    """Those of {pid: start time} that live."""
    return [p for p, start in processes.items() if (s := _stat(p)) and s[2] == start and s[1] != "Z"]
