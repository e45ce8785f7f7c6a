"""Runs the built service for the scripts of this folder. It lies beside the program of TROUPE_PROGRAM."""

import atexit
import http.client
import json
import os
import re
import ssl
import subprocess
import threading
import time

from processes import process_table
from troupe_program import PROGRAM, check_equal, environment, fail

SERVICE = os.path.join(os.path.dirname(PROGRAM or ""), "troupe_service")
# A job whose steps take milliseconds, so that it lasts until it is stopped.
ENDLESS = {"model": {"hidden": [512, 512]}, "data": {"samples": 4096},
           "options": {"ranks": 2, "max_epochs": 100_000, "batch_size": 64, "log_every_n_steps": 5}}
SMALL = {"model": {"hidden": [16]}, "data": {"samples": 256},
         "options": {"ranks": 2, "max_epochs": 2, "batch_size": 8, "log_every_n_steps": 2}}


def changed(request, **options):
    return {**request, "options": {**request["options"], **options}}


class Service:
    """A running service on a port of its own choice. Its notes are in `notes`."""

    def __init__(self, folder, *arguments, token=None, before=()):
        self.token, self.secure = token, "--certificate" in arguments
        self.process = subprocess.Popen([*before, SERVICE, "--folder", folder, "--port", "0", *arguments],
                                        stderr=subprocess.PIPE, text=True, env=environment({}))
        atexit.register(self.process.kill)  # of a story that failed; does nothing after its end
        self.notes = self.process.stderr.readline()
        found = re.search(r"serving on \w+://.*:(\d+)/", self.notes)
        if not found:
            fail(f"the service does not start: {self.notes}{self.process.communicate()[1]}")
        self.port = int(found[1])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.notes += line

    def connection(self):
        if self.secure:
            trusting = ssl.create_default_context()
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=trusting)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def headers(self):
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(self, method, path, body=None, **headers):
        """Status and text of one answer."""
        client = self.connection()
        sent = {**self.headers(), **headers}
        if body is not None:
            body = body if isinstance(body, (str, bytes)) else json.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        client.request(method, path, body, sent)
        answer = client.getresponse()
        text = answer.read().decode()
        client.close()
        return answer.status, text

    def get(self, path):
        status, text = self.ask("GET", path)
        check_equal(status, 200, text)
        return json.loads(text)

    def post(self, path, body=None, status=202):
        got, text = self.ask("POST", path, {} if body is None else body)
        check_equal(got, status, text)
        return json.loads(text)

    def start(self, request, name):
        return self.post("/v1/jobs", {**request, "name": name}, 201)

    def job(self, name):
        return self.get(f"/v1/jobs/{name}")

    def events(self, name, after=0):
        """The events of a job as (id, kind, data), one after the other, until the stream ends."""
        client = self.connection()
        client.request("GET", f"/v1/jobs/{name}/events?after={after}", headers=self.headers())
        answer = client.getresponse()
        check_equal(answer.status, 200)
        number, kind = None, None
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                yield number, kind, json.loads(line[6:])
                number = None
        client.close()

    def wait_for(self, name, holds, what):
        """Follows a job until `holds` says so of how it stands. The service itself says it once a second only."""
        job = self.job(name)
        for _, kind, data in self.events(name, after=job["events"]):
            job = data if kind == "job" else self.job(name)
            if holds(job):
                return job
        fail(f"{name}: {what} did not happen\n{job}\n{self.notes}")

    def wait_for_step(self, name, step):
        return self.wait_for(name, lambda job: job["status"] and job["status"]["step"] >= step, f"step {step}")

    def wait_for_end(self, name):
        return self.wait_for(name, lambda job: job["state"] != "running", "the end")

    def ranks(self):
        """The processes of ranks, by rank."""
        return {int(words[2]): pid for pid, parent, words in process_table()
                if parent == self.process.pid and len(words) > 2 and words[1] == "--troupe-rank"}

    def notes_end(self):
        """Waits until all notes of a service that has ended are in `notes`."""
        self._reader.join(60)

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, number=15):
        """Ends the service; returns its exit code."""
        self.signal(number)
        return self.process.wait(120)


def timed(call, count):
    """Durations of so many calls in milliseconds, ascending."""
    found = []
    for _ in range(count):
        began = time.monotonic()
        call()
        found.append((time.monotonic() - began) * 1000)
    return sorted(found)
