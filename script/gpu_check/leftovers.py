"""That a run with worker processes leaves neither a process nor memory of the GPU behind, however its head ends."""
import json
import os
import signal
import subprocess
import time

from . import machine
from .steps import Wrong, last_line

ROOM_MIB = 64  # the driver's own ups and downs

LONG = {"name": "gpu_check_long", "seed": 3, "sync": {"every_steps": 200}, "checkpoints": {"every_syncs": 0},
        "trainers": [{"name": "a", "count": 4, "workload": {"type": "mlp", "data": "synthetic", "batch": 64},
                      "stop_step": 1000000000}]}


def leaves_nothing(check, here, env, name, limit):
    """Sends the head the signal in the middle of training, and looks for what is there afterwards."""
    end = time.monotonic() + limit
    before = machine.gpu_state(check, min(limit, 15)) if here.device != "cpu" else None
    path = here.scratch(f"long-{name}.json")
    with open(path, "w") as f:
        json.dump(LONG, f)
    command = [here.program("troupe"), "run", path, "--device", here.device, "--slots", "2", "--workers", "2", "--out", path + ".run",
               "--json"]
    with open(path + ".out", "wb") as out, open(path + ".err", "wb") as err:
        try:
            head = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
        except OSError as e:
            raise Wrong(f"{command[0]} cannot be started: {e.strerror}", command=command) from None
    with check.lock:
        check.live.add(head)
    workers = {}
    try:
        def said():
            with open(path + ".out", errors="replace") as f:
                return f.read()

        def failed(why):
            with open(path + ".err", errors="replace") as f:
                raise Wrong(f"{why}: {last_line(f.read())}", command=command)

        def wait_for(what, true):
            while not true():
                if check.stopped or time.monotonic() > end:
                    failed(check.stopped or f"ran into its limit of {limit:.3g} s, waiting for {what}")
                time.sleep(0.05)

        wait_for("a sync point", lambda: '"kind":"sync_point"' in said() or head.poll() is not None)
        if head.poll() is not None:
            failed(f"the run ended by itself with status {head.returncode}")
        workers = machine.children_of(head.pid)
        if len(workers) < 2:
            failed(f"the run has {len(workers)} worker processes, not 2")
        head.send_signal(getattr(signal, name))
        wait_for("the head's end", lambda: head.poll() is not None)
        wait_for("the workers' end", lambda: not machine.still_there(workers))
        if before is None:
            return {"workers": len(workers)}
        found = {"workers": len(workers), "used_mib_before": before["used_mib"]}
        for _ in range(20):  # the driver may take a moment
            found["used_mib_after"] = machine.gpu_state(check, max(1, end - time.monotonic()))["used_mib"]
            if found["used_mib_after"] <= before["used_mib"] + ROOM_MIB:
                return found
            if check.stopped or time.monotonic() > end:
                break
            time.sleep(0.25)
        raise Wrong("memory of the GPU is still in use", **found)
    finally:
        for pid in [head.pid] if head.poll() is None else []:
            os.killpg(pid, signal.SIGKILL)
        for pid in machine.still_there(workers):
            os.kill(pid, signal.SIGKILL)
        try:
            head.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass  # nothing helps
        with check.lock:
            check.live.discard(head)
