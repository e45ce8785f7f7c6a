"""Goal: --metrics-port serves what Prometheus reads, on loopback only, and bad clients cost only themselves."""

import http.client
import math
import os
import re
import signal
import socket

from troupe_program import Traced, check, check_code, check_equal, check_in, fit, main

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")


def parse(text):
    """The samples of Prometheus' text format 0.0.4: (name, labels) to value. Fails on what it does not allow."""
    check(text.endswith("\n"), "no line end at the end")
    types, samples, family = {}, {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            check(family not in types, f"{family} has two groups")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            check_equal(name, family)
            check_in(kind, ("gauge", "counter"))
            check(kind != "counter" or name.endswith("_total"), f"the counter {name} does not end in _total")
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            check(found and found[1] == family and family in types, f"no sample of {family}: {line}")
            labels = tuple(re.findall(LABEL, found[2] or ""))
            check((found[1], labels) not in samples, f"twice: {line}")
            samples[found[1], labels] = float(found[3].replace("Inf", "inf"))
    return samples


class Running(Traced):
    """A fit whose ranks wait in step 20, until it is released. It serves metrics."""

    def __init__(self, folder, *arguments):
        super().__init__(os.path.join(folder, 'run"\\'), "--metrics-port", "0", "--set", "log_every_n_steps=1",
                         *arguments, hold=("backward", {"rank": 0, "step": 20}))
        self.wait_for_note("metrics on http://127.0.0.1:")
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)/metrics", self._notes)[1])
        self.wait_for("backward", rank=0, step=20)

    def ask(self, method="GET", target="/metrics"):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request(method, target)
        answer = client.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


def answer_to(request, running):
    with running.connect() as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def is_closed(client):
    """Waits for the end of the connection."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def story_metrics_of_a_run(folder):
    running = Running(folder)
    samples = {("troupe_step", ()): 0}
    while samples["troupe_step", ()] < 20:  # the status follows the trace
        status, headers, text = running.ask()
        check_equal(status, 200)
        check_in("text/plain; version=0.0.4", headers["Content-Type"])
        samples = parse(text)
    check(samples["troupe_step", ()] <= 32, samples)
    check_equal(samples["troupe_ranks", ()], 2)
    check_equal(samples["troupe_generation", ()], 1)
    check_equal(samples["troupe_failures_total", ()], 0)
    check(samples["troupe_samples_total", ()] >= 16 * 19, samples)
    check(math.isfinite(samples["troupe_metric", ('name="train/loss"',)]), samples)
    info = next(labels for name, labels in samples if name == "troupe_info")
    check(any(label.endswith('run\\"\\\\"') for label in info), info)
    check_equal(running.ask(target="/metrics?name=x")[0], 200)
    check_equal(running.ask("HEAD")[2], "")
    check_equal(running.ask(target="/")[0], 404)
    check_equal(running.ask("POST")[0], 405)
    running.release()
    running.signal(signal.SIGTERM)
    check(running.end().code in (0, 143))


def story_a_quiet_fit_says_which_port_port_0_is(folder):
    running = Running(folder, "--quiet")
    check_equal(running.ask()[0], 200)
    running.release()
    ended = check_code(running.end(), 0)
    check_equal(len(ended.err.splitlines()), 1, ended)


def story_bad_clients_cost_only_themselves(folder):
    running = Running(folder)
    silent = [running.connect() for _ in range(40)]
    slow = running.connect()
    slow.sendall(b"GET /metr")
    check_in(b"400", answer_to(b"\x16\x03\x01\x00\xff" * 20 + b"\r\n\r\n", running).split(b"\r\n")[0])
    check_in(b"431", answer_to(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100000, running)[:20])
    large = b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n"
    check_in(b"413", answer_to(large, running)[:20])
    check_equal(running.ask()[0], 200)
    # One connection more than 16 closes the oldest one, and each ends after 5 s.
    for client in [*silent, slow]:
        check(is_closed(client), "a silent connection stays open")
        client.close()
    check_equal(running.ask()[0], 200)
    running.release()
    check_code(running.end(), 0)


def story_a_port_in_use_changes_nothing(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = os.path.join(folder, "run")
        ended = check_code(fit(run, "--metrics-port", taken.getsockname()[1]), 3)
        check_in("--metrics-port", ended.err)
        check_equal(os.listdir(run), ["lock"])
    check_code(fit(run), 0)


def story_it_listens_on_loopback_only(folder):
    running = Running(folder)
    with open(f"/proc/{running.pid()}/net/tcp", encoding="utf-8") as f:
        listening = [line.split()[1] for line in f if line.split()[3] == "0A"]
    check_in(f"0100007F:{running.port:04X}", listening)
    check(f"00000000:{running.port:04X}" not in listening)
    running.release()
    check_code(running.end(), 0)


def story_a_loss_that_is_no_number_is_served_as_one(folder):
    running = Running(folder, "--learning-rate", "1e30")
    samples = parse(running.ask()[2])
    check(math.isnan(samples["troupe_metric", ('name="train/loss"',)]), samples)
    running.release()
    running.end()


if __name__ == "__main__":
    main(globals())
