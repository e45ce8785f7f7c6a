"""Goal: a job of the service whose data do not fit its request fails with the field and its right value. Options
that cannot be are refused, and events keep their numbers where the disk is full. A standard error that cannot be
written ends no service, and a client that asks again and again reads no file."""

import atexit
import contextlib
import http.client
import os
import socket
import subprocess
import sys

from troupe_program import PROGRAM, check, check_code, check_equal, check_in, main, troupe
from troupe_service import ENDLESS, SERVICE, Service, changed

BYTES = 200_000  # more than a checkpoint, less than a journal
# Python ignores the signal of a write beyond the limit. The program starts with its default, as in a shell.
LIMITED = [sys.executable, "-c", "import os, resource, signal, sys\n"
           f"resource.setrlimit(resource.RLIMIT_FSIZE, ({BYTES}, {BYTES}))\n"
           "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
           "os.execv(sys.argv[1], sys.argv[1:])"]
THREADS = {"model": {"hidden": [16]}, "data": {"samples": 256},
           "options": {"ranks": 2, "max_epochs": 100, "batch_size": 8, "log_every_n_steps": 1, "placement": "threads",
                       "max_restarts": 0}}


def story_a_csv_job_with_wrong_sizes_fails_with_the_right_ones(folder):
    path = os.path.join(folder, "my.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write("a,b,c,class\n")
        for number in range(64):
            file.write(f"{number % 3}.5,{number % 5}.5,1.5,{number % 4}\n")
    service = Service(os.path.join(folder, "place"))
    right = {"name": "csv", "path": path, "features": 3, "classes": 4}
    options = {"ranks": 2, "max_epochs": 1, "batch_size": 8, "placement": "threads", "max_restarts": 0}
    for number, (data, part) in enumerate((
            ({**right, "features": 5}, f"data.features is 5, but a sample of {path} has 3 of them: give 3"),
            ({**right, "classes": 3}, f"data.classes is 3, but a target of {path} is 3: give 4 or more"))):
        service.start({"data": data, "options": options}, f"wrong-{number}")
        failed = service.wait_for_end(f"wrong-{number}")
        check_equal(failed["state"], "failed")
        check_in(part, failed["result"]["failure"]["what"])
    service.start({"data": right, "options": options}, "right")
    check_equal(service.wait_for_end("right")["state"], "finished")
    check_equal(service.end(), 0)


def story_options_that_cannot_be_are_refused(folder):
    service = Service(folder)
    for options, part in (({"max_restarts": 0, "spares": 2}, "options.max_restarts is 0"),
                          ({"batch_size": 2**31}, "give an integer from 1 to 2147483647")):
        status, text = service.ask("POST", "/v1/jobs", {"options": options})
        check_equal(status, 400, text)
        check_in(part, text)
    check_equal(service.end(), 0)


def story_the_program_names_the_service_of_a_job(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")
    place = os.path.join(folder, "jobs", "run")
    service.wait_for_step("run", 1)
    for arguments in (["stop", place], ["scale", place, "--ranks", 1]):
        ended = check_code(troupe(*arguments), 3)
        check_in(f"{place} is a job of troupe_service: ask that, on its page or by POST /v1/jobs/NAME/{arguments[0]}",
                 ended.err)
    watch = subprocess.Popen([PROGRAM, "watch", place], stdout=subprocess.PIPE, text=True)
    check_in(f"{place}: running; ask its troupe_service", watch.stdout.readline())
    watch.kill()
    watch.communicate()
    check_equal(service.end(), 0)


def story_events_keep_their_numbers_after_the_disk_was_full(folder):
    def events(of):
        return [(number, data) for number, kind, data in of.events("run") if kind != "job"]

    service = Service(folder, before=LIMITED)
    service.start(THREADS, "run")
    seen = events(service)  # while it runs
    check_equal(service.job("run")["state"], "finished")
    steps = [data["step"] for _, data in seen if data["kind"] == "metrics"]
    check(steps[-1] < 1600, (steps[-1], os.path.getsize(os.path.join(folder, "jobs", "run", "journal.jsonl"))))
    check_equal(service.end(), 0)
    service = Service(folder)
    check_equal(events(service), seen)
    check_equal(service.job("run")["events"], seen[-1][0])
    service.start(changed(THREADS, max_epochs=1), "next")
    check_equal(service.wait_for_end("next")["state"], "finished")
    check_equal(service.end(), 0)


def story_an_output_that_cannot_be_written_ends_no_service(folder):
    os.makedirs(os.path.join(folder, "jobs", "damaged"))  # a warning
    # A socket that is bound and does not listen keeps the port from others, but not from the service.
    with socket.socket() as free, open("/dev/full", "w", encoding="utf-8") as full:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        service = subprocess.Popen([SERVICE, "--folder", folder, "--port", str(port)], stderr=full)
        atexit.register(service.kill)
        status = None
        while status is None:
            check(service.poll() is None, f"the service has ended: {service.returncode}")
            with contextlib.suppress(ConnectionError):
                client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                client.request("GET", "/healthz")
                status = client.getresponse().status
        check_equal(status, 200)
        service.send_signal(15)
        check_equal(service.wait(60), 0)
        for flags, code in ((["--port", "99999"], 2), (["--folder", "a" * 300], 3)):
            check_equal(subprocess.run([SERVICE, *flags], stderr=full, check=False, cwd=folder).returncode, code)
        for flag in ("--manual", "--help", "--version"):
            said = subprocess.run([SERVICE, flag], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            check_equal(said.returncode, 1, said)
            check_in("cannot write to standard output", said.stderr)


def story_a_client_that_knows_all_events_of_an_ended_job_costs_no_reading(folder):
    service = Service(folder)
    service.start(changed(THREADS, max_epochs=4), "run")
    service.wait_for_end("run")
    size = os.path.getsize(os.path.join(folder, "jobs", "run", "journal.jsonl"))
    newest = service.job("run")["events"]

    def bytes_read():
        with open(f"/proc/{service.process.pid}/io", encoding="utf-8") as file:
            return int(next(file).removeprefix("rchar: "))

    before = bytes_read()
    check_equal(len(list(service.events("run"))), newest + 1)
    once = bytes_read() - before
    check(once >= size, (once, size))
    before = bytes_read()
    for _ in range(10):
        check_equal([kind for _, kind, _ in service.events("run", after=newest)], ["job"])
    check(bytes_read() - before < size, (bytes_read() - before, size))
    check_equal(service.end(), 0)


if __name__ == "__main__":
    main(globals())
