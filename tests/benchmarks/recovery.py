"""Measures how long the peers need after kill -9 of one of four ranks, until the next committed step."""
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
RANKS = 4
STEADY = 20         # steps of every rank before the next kill
TIME_LIMIT = 120    # seconds to the next step
# torchft's own settings, and low ones: milliseconds of the lighthouse, seconds between heartbeats of a replica.
TORCHFT = {"torchft": ({}, 0.1),
           "torchft, low limits": ({"join_timeout_ms": 50, "quorum_tick_ms": 10, "heartbeat_timeout_ms": 150}, 0.02)}


class failed(Exception):
    """A peer that gave no figures. The text is the reason."""


class Ranks:
    """Processes whose lines say which step a rank has committed."""

    def __init__(self):
        self._lines = queue.Queue()
        self._commands = {}  # by process: the command of those that start again when they end
        self.started = []
        self.pid, self.highest = {}, 0

    def start(self, command, again=False):
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        self.started.append(one)
        if again:
            self._commands[one] = command
        threading.Thread(target=self._read, args=(one,), daemon=True).start()
        return one

    def _read(self, one):
        for line in one.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))

    def next(self, deadline):
        while True:
            for one in [one for one in self._commands if one.poll() is not None]:
                self.start(self._commands.pop(one), again=True)
            try:
                line = self._lines.get(timeout=0.1)
                break
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise failed(f"no step within {TIME_LIMIT} s") from None
        self.pid[line["rank"]] = line["pid"]
        self.highest = max(self.highest, line["step"])
        return line

    def train(self):
        """Until every rank has done some steps together with all others."""
        deadline, counts = time.monotonic() + TIME_LIMIT, dict.fromkeys(range(RANKS), 0)
        while min(counts.values()) < STEADY:
            line = self.next(deadline)
            if line.get("members", RANKS) == RANKS:
                counts[line["rank"]] += 1

    def kill(self, rank):
        """Milliseconds from the kill to the first step that needs no message of the killed rank. Survivors may finish
        the step in progress, in which the rank had its part."""
        at = time.monotonic()
        os.kill(self.pid[rank], signal.SIGKILL)
        finished = self.highest + 1
        while True:
            line = self.next(at + TIME_LIMIT)
            if line["at"] <= at:
                finished = max(finished, line["step"] + 1)
            elif line["step"] > finished:
                return 1000 * (line["at"] - at)

    def end(self):
        for one in self.started:
            one.kill()
        for one in self.started:
            one.wait()


def torchrun(python, rounds):
    """The agent ends all ranks and starts them again; they go on from the checkpoint of the last step."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks()
        agent = ranks.start([python, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                             str(RANKS), "--max-restarts", str(rounds), os.path.join(PEERS, "recovery_ddp.py"),
                             os.path.join(folder, "checkpoint")])
        try:
            for one in range(rounds):
                ranks.train()
                yield ranks.kill(one % RANKS)
        finally:
            agent.send_signal(signal.SIGTERM)  # so that it ends its ranks
            try:
                agent.wait(30)
            except subprocess.TimeoutExpired:
                pass
            for pid in ranks.pid.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            ranks.end()


def torchft(python, rounds, lighthouse_settings, heartbeat):
    """The other replicas go on without the killed one. A replica that ends starts again."""
    code = ("import json, sys; from torchft.coordination import LighthouseServer as S; "
            "s = S(bind='[::]:0', min_replicas=2, **json.loads(sys.argv[1])); print(s.address(), flush=True); "
            "sys.stdin.read()")
    lighthouse = subprocess.Popen([python, "-c", code, json.dumps(lighthouse_settings)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ranks = Ranks()
    try:
        address = lighthouse.stdout.readline().strip()
        if not address:
            raise failed("the lighthouse does not start")

        for replica in range(RANKS):
            ranks.start([python, "-B", os.path.join(PEERS, "recovery_torchft.py"), str(replica), address,
                         str(heartbeat)], again=True)
        for one in range(rounds):
            ranks.train()
            yield ranks.kill(one % RANKS)
    finally:
        ranks.end()
        lighthouse.kill()
        lighthouse.wait()


def peers():
    """By name: a function of the Python to run and of a number of rounds that yields milliseconds."""
    return {"torchrun": torchrun,
            **{name: lambda python, rounds, how=how: torchft(python, rounds, *how) for name, how in TORCHFT.items()}}


if __name__ == "__main__":
    for name, measure in peers().items():
        if len(sys.argv) < 4 or name in sys.argv[3:]:
            print(name, [round(ms) for ms in measure(sys.argv[1], int(sys.argv[2]))], flush=True)
