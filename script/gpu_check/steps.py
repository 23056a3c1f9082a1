"""Steps one after the other, each with a time limit. What is known is in the result file at any moment."""
import datetime
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time


class Wrong(Exception):
    """A step failed. `more` goes into its line."""

    def __init__(self, why, **more):
        super().__init__(why)
        self.more = more


class Absent(Exception):
    """A step cannot be done here, and that is no failure."""


class Ended:
    """How a program ended: `fault` says what stopped it or kept it from starting, else `status` is its exit status."""

    def __init__(self, command, status=None, fault="", out="", err="", seconds=0.0):
        self.command, self.status, self.fault, self.out, self.err, self.seconds = command, status, fault, out, err, seconds

    def why(self):
        """Empty where it ended with status 0."""
        if self.fault:
            return self.fault
        if self.status == 0:
            return ""
        said = last_line(self.err) or last_line(self.out)
        return how(self.status) + (f": {said}" if said else "")

    def tail(self, lines=20):
        return (self.out.splitlines()[-lines:] + self.err.splitlines()[-lines:])


def how(status):
    if status < 0:
        try:
            return "killed by " + signal.Signals(-status).name
        except ValueError:
            return f"killed by signal {-status}"
    return f"exit status {status}"


def last_line(text):
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    return lines[-1][-300:] if lines else ""


def objects(text, least=1):
    """The JSON objects of a program that prints one a line and nothing else."""
    found = []
    for n, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except ValueError:
            one = None
        if not isinstance(one, dict):
            raise Wrong(f"line {n} of its output is no JSON object: {line[:120]}")
        found.append(one)
    if len(found) < least:
        raise Wrong(f"it printed {len(found)} JSON objects, at least {least} were expected")
    return found


def finite(x):
    """With texts for numbers that JSON does not have."""
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    return [finite(v) for v in x] if isinstance(x, (list, tuple)) else x


class Check:
    """`seconds` for all of it. On SIGTERM, SIGINT and SIGHUP what runs is killed, the rest is not run, and the summary is written."""

    def __init__(self, what, path, seconds, header, limits=None):
        self.what, self.seconds, self.began = what, seconds, time.monotonic()
        self.outcomes = {}  # by step
        self.stopped = ""  # why nothing more is done
        self.live, self.lock = set(), threading.RLock()
        self.limits = limits or {}
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(s, self._on_signal)
        now = datetime.datetime.now(datetime.timezone.utc)
        self.emit({"kind": "start", "what": what, "date": now.strftime("%FT%TZ"), **header})

    # -- what is told ---------------------------------------------------------------------------------------------------

    def emit(self, line):
        """A whole line in one write, so that the file has whole lines only."""
        os.write(self.file, (json.dumps(finite(line), allow_nan=False) + "\n").encode())

    @staticmethod
    def say(text):
        try:
            print(text, flush=True)
        except BrokenPipeError:  # nobody listens any more; the file has it
            sys.stdout = open(os.devnull, "w")

    def note(self, name, outcome, seconds=0.0, why="", **more):
        self.outcomes[name] = outcome
        line = {"kind": "step", "name": name, "outcome": outcome, "seconds": round(seconds, 2)}
        if why:
            line["why"] = why
        self.emit({**line, **more})
        if outcome == "not run" and self.stopped:
            return  # the reason was told
        self.say(f"== {name}: {outcome}" + (f" in {seconds:.1f} s" if seconds else "") + (f": {why}" if why else ""))
        known = {k: v for k, v in more.items() if k not in ("output", "command", "kernels", "cases", "losses")}
        if known:
            self.say("   " + json.dumps(known)[:400])
        for text in more.get("output", [])[-6:]:
            self.say("   | " + text[:300])

    def close(self):
        """The summary; returns the exit status."""
        by = {o: [n for n, x in self.outcomes.items() if x == o] for o in ("passed", "failed", "skipped", "not run")}
        good = not by["failed"] and not by["not run"] and bool(by["passed"])
        summary = {"kind": "summary", "what": self.what, "passed": good, "complete": not by["not run"],
                   "steps_passed": len(by["passed"]), "failed": by["failed"], "not_run": by["not run"], "skipped": by["skipped"],
                   "seconds": round(time.monotonic() - self.began, 1)}
        if self.stopped:
            summary["stopped"] = self.stopped
        self.emit(summary)
        self.say(json.dumps(summary))
        return 0 if good else 1

    # -- what is done ---------------------------------------------------------------------------------------------------

    now = staticmethod(time.monotonic)

    def left(self):
        return self.began + self.seconds - time.monotonic()

    def stop(self, why):
        """Nothing more is done."""
        if not self.stopped:
            self.stopped = why
            self.say(f"== nothing more is run: {why}")

    def do(self, name, limit, work):
        """`work(limit)` returns what its line is to have besides, or raises. Returns that, or None where it did not pass."""
        if self.stopped:
            return self.note(name, "not run", why=self.stopped)
        limit = min(self.limits.get(name, limit), self.left())
        if limit <= 0:
            return self.note(name, "not run", why=f"of {self.seconds:g} s none are left")
        began = time.monotonic()
        try:
            found = work(limit) or {}
        except Absent as e:
            return self.note(name, "skipped", time.monotonic() - began, str(e))
        except Wrong as e:
            return self.note(name, "failed", time.monotonic() - began, str(e), **e.more)
        except Exception as e:  # of the check itself: the others go on
            return self.note(name, "failed", time.monotonic() - began, f"the check itself failed: {type(e).__name__}: {e}")
        self.note(name, "passed", time.monotonic() - began, **found)
        return found

    def step(self, name, command, limit, judge, env=None):
        """A program that has to end with status 0, and `judge(Ended)` on top. Its JSON lines are kept as they come."""

        def work(seconds):
            def on_line(line):
                try:
                    one = json.loads(line)
                except ValueError:
                    return
                if isinstance(one, dict):
                    self.emit({"kind": "output", "step": name, "line": one})

            self.say(f"-- {' '.join(command)}")
            ended = self.execute(command, seconds, env, on_line)
            if ended.why():
                raise Wrong(ended.why(), command=command, output=ended.tail())
            try:
                return judge(ended)
            except Wrong as e:
                raise Wrong(str(e), **{"command": command, "output": ended.tail(), **e.more}) from None
            except (KeyError, TypeError, ValueError) as e:
                raise Wrong(f"its output is not as expected ({type(e).__name__}: {e})", command=command,
                            output=ended.tail()) from None

        return self.do(name, limit, work)

    def execute(self, command, limit, env=None, on_line=None):
        """Runs a program for at most so long, then kills it and all that it started. Any thread."""
        began = time.monotonic()
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                                     start_new_session=True)
        except OSError as e:
            return Ended(command, fault=f"{command[0]} cannot be started: {e.strerror}")
        with self.lock:
            self.live.add(child)
        try:
            got = {child.stdout: bytearray(), child.stderr: bytearray()}
            fault = self._read(child, got, began + limit, limit, on_line)
            if fault:
                self._kill(child)
            try:
                status = child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                fault += ", and cannot be killed"
                status = None
            if self.stopped and status != 0:  # killed by us, however quickly it went
                fault = fault or self.stopped
        finally:
            with self.lock:
                self.live.discard(child)
            child.stdout.close()
            child.stderr.close()
        out, err = (bytes(got[x]).decode(errors="replace") for x in (child.stdout, child.stderr))
        return Ended(command, status, fault, out, err, time.monotonic() - began)

    def _read(self, child, got, end, limit, on_line):
        """Until the program has ended. Returns what is wrong with it."""
        told = 0
        with selectors.DefaultSelector() as pipes:
            for pipe in got:
                pipes.register(pipe, selectors.EVENT_READ)
            while pipes.get_map() or child.poll() is None:
                if self.stopped:
                    return self.stopped
                left = end - time.monotonic()
                if left <= 0:
                    return f"ran into its limit of {limit:.3g} s"
                if not pipes.get_map():  # it has closed its output, but goes on
                    try:
                        child.wait(timeout=min(left, 0.2))
                    except subprocess.TimeoutExpired:
                        pass
                    continue
                ready = pipes.select(min(left, 0.2))
                if not ready and child.poll() is not None:
                    return ""  # another process has its output
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        pipes.unregister(key.fileobj)
                    got[key.fileobj] += chunk
                    if on_line and key.fileobj is child.stdout:
                        end_of_line = got[child.stdout].rfind(b"\n") + 1
                        for line in bytes(got[child.stdout][told:end_of_line]).decode(errors="replace").splitlines():
                            on_line(line)
                        told = max(told, end_of_line)
        return ""

    @staticmethod
    def _kill(child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _on_signal(self, number, _):
        self.stopped = self.stopped or "stopped by " + signal.Signals(number).name
        with self.lock:
            for child in list(self.live):
                if child.poll() is None:
                    self._kill(child)
