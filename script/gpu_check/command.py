"""The command line, and where everything lies: in a source tree or in an unpacked pack."""
import argparse
import json
import os
import platform
import tempfile

from . import pack
from .figures import Figures
from .run import Run
from .steps import Check

RUN_SECONDS, FIGURES_SECONDS = 230, 290


class WrongUse(Exception):
    pass


def built(root):
    """The programs of a source tree: of the first build that has them."""
    folders = [os.path.join(root, "build", x, "bin") for x in ("gpu-check", "release", "ci")]
    return next((x for x in folders if os.path.exists(os.path.join(x, "bench_memory"))), folders[0])


class Here:
    def __init__(self, folder, bin_folder, device, work):
        self.device, self.work = device, work
        self.packed = pack.manifest(folder)
        self.root = folder if self.packed else os.path.dirname(folder)
        self.bin = bin_folder or (os.path.join(self.root, "bin") if self.packed else built(self.root))
        self.bench = os.path.join(self.root, "bench")

    def program(self, name):
        return os.path.join(self.bin, name)

    def scratch(self, name):
        return os.path.join(self.work, name)

    def environment(self):
        """Of our programs. Libraries that came along are found by the programs themselves (their rpath): no path of ours reaches
        nvidia-smi, a profiler or a peer."""
        return {**os.environ, "XDG_CACHE_HOME": self.work}

    def header(self):
        out = {"device": self.device, "bin": os.path.relpath(self.bin, self.root), "machine": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}
        if self.packed:
            return out | {k: self.packed[k] for k in ("commit", "architectures")}
        return out | {"commit": pack.commit(self.root)}


def limits():
    try:
        found = json.loads(os.environ.get("TROUPE_CHECK_LIMITS") or "{}")
        return {k: float(v) for k, v in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise WrongUse('TROUPE_CHECK_LIMITS has to be a JSON object such as {"doctor": 5}') from None


def measure(args, folder, kind, seconds):
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        here = Here(folder, args.bin, os.environ.get("TROUPE_CHECK_DEVICE") or "cuda", work)
        if not os.path.isdir(here.bin):
            raise WrongUse(f"there is no folder {here.bin}: build first (script/gpu-check build), or name one with --bin")
        check = Check(args.command, args.out, args.seconds or seconds, here.header(), limits())
        if here.packed:
            check.do("this machine's C library", 5, lambda _: pack.suits(here.packed))
        work_of = kind(check, here)
        work_of.all()
        return check.close()


def main(folder, about):
    p = argparse.ArgumentParser(prog="gpu-check", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, out, help in (("run", "gpu-check.jsonl", "is the CUDA path right"),
                            ("figures", "gpu-figures.jsonl", "how fast is it")):
        c = commands.add_parser(name, help=help)
        c.add_argument("--out", default=out, metavar="RESULT", help="JSON lines (%(default)s)")
        c.add_argument("--bin", metavar="FOLDER", help="the programs' folder")
        c.add_argument("--seconds", type=float, help="all of it ends by then")
    for name, help in (("build", "for one architecture, in build/gpu-check"), ("pack", "builds, and packs for another machine")):
        c = commands.add_parser(name, help=help)
        c.add_argument("--arch", default="90", help="the GPU's compute capability without its dot (%(default)s)")
        if name == "pack":
            c.add_argument("file", metavar="FILE.tar.xz")
            c.add_argument("--build", metavar="BUILD", help="packs this build tree as it is")
    args = p.parse_args()
    if args.command in ("build", "pack") and pack.manifest(folder):
        p.error(f"{args.command} needs the source tree, this is a pack")
    try:
        if args.command == "run":
            return measure(args, folder, Run, RUN_SECONDS)
        if args.command == "figures":
            return measure(args, folder, Figures, FIGURES_SECONDS)
        root = os.path.dirname(folder)
        if args.command == "build":
            pack.build(root, args.arch)
            return 0
        return pack.pack(root, args.file, args.build or pack.build(root, args.arch))
    except WrongUse as e:
        p.error(str(e))
    except (pack.Refused, OSError) as e:
        raise SystemExit(f"gpu-check: {e}") from None
