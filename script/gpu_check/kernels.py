"""What the kernels of one training step took, from Nsight Compute's table."""
import csv
import re

from .steps import Wrong

METRIC = "gpu__time_duration.sum"
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def durations(text):
    """[(kernel, grid, block, microseconds)] in the order of launches. The program's own lines stand between the table's, which has a
    line for each metric, or a column and a first row of units."""
    rows = list(csv.reader(x for x in text.splitlines() if x.startswith('"')))
    if not rows or "Kernel Name" not in rows[0]:
        raise Wrong("there is no table of kernels in ncu's output")
    wide = METRIC in rows[0]
    units = dict(zip(rows[0], rows[1])) if wide and len(rows) > 1 else {}
    out = []
    for row in rows[2 if wide else 1:]:
        line = dict(zip(rows[0], row))
        if wide:
            value, unit = line.get(METRIC, ""), units.get(METRIC, "")
        elif line.get("Metric Name") == METRIC:
            value, unit = line.get("Metric Value", ""), line.get("Metric Unit", "")
        else:
            continue
        try:
            took = float(value.replace(",", "")) * MICROSECONDS[unit]
        except (KeyError, ValueError):
            raise Wrong(f"ncu gives no duration of {line['Kernel Name'][:80]}: {value!r} {unit!r}") from None
        out.append((line["Kernel Name"], line.get("Grid Size", ""), line.get("Block Size", ""), took))
    return out


def short(name):
    """"sgd_apply_op, map_kernel" of a template's whole name; a library's as it is."""
    if "troupe" not in name:
        return re.split(r"[<(]", name.removeprefix("void "))[0][:100]
    form = re.search(r"(\w+_kernel)", name)
    op = re.search(r"(\w+)_op\b", name)
    return ", ".join(x[1] for x in (op, form) if x) or name[:100]


def step_of(text):
    """The last whole step: from one kernel begin_step to the next."""
    found = durations(text)
    begins = [i for i, (name, *_) in enumerate(found) if "begin_step" in name]
    if len(begins) < 2:
        raise Wrong(f"of {len(found)} kernels {len(begins)} begin a step: there is no whole step among them")
    step = found[begins[-2]:begins[-1]]
    return {"kernels": [{"kernel": short(n), "grid": g, "block": b, "us": round(us, 3)} for n, g, b, us in step],
            "sum_us": round(sum(us for *_, us in step), 2)}


def slowest(step):
    """A table for people, in the order of the step."""
    lines = [f"   {x['us']:9.2f} us  {x['kernel']}  {x['grid']} x {x['block']}" for x in step["kernels"]]
    return "\n".join([*lines, f"   {step['sum_us']:9.2f} us  {len(step['kernels'])} kernels, without the gaps between them"])
