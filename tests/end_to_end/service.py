"""Goal: the service starts, lists, follows, scales and stops jobs for HTTP clients. Bad clients cost only themselves.
It answers fast while ranks keep all cores busy. SIGTERM saves its jobs, and what SIGTERM or SIGKILL interrupted goes
on in the next service, to the weights of an undisturbed run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

from troupe_program import check, check_code, check_equal, check_in, main, troupe
from troupe_service import ENDLESS, SERVICE, SMALL, Service, changed, timed

BOUND_MS = 50
STREAMS = 32  # that may be open at once
CONNECTIONS = 64


def digest(job):
    return job["result"]["weights_digest"]


def story_a_job_runs_to_its_end_and_its_events_tell_it(folder):
    service = Service(folder)
    started = service.start(SMALL, "small")
    check_equal((started["name"], started["state"]), ("small", "running"))
    seen = list(service.events("small"))
    numbers = [n for n, kind, _ in seen if kind != "job"]
    check_equal(numbers, list(range(1, len(numbers) + 1)))
    life = [data["event"] for _, kind, data in seen if kind == "lifecycle"]
    check_equal((life[0], life[-1]), ("generation_forming", "job_ended"))
    check_in("checkpoint_written", life)
    losses = [data["values"]["train/loss"] for _, kind, data in seen
              if kind == "metrics" and "train/loss" in data["values"]]
    check(len(losses) > 8 and losses[-1] < losses[0], losses)
    job = service.job("small")
    check_equal((job["state"], job["result"]["steps"], job["result"]["failure"]), ("finished", 32, None))
    check_equal(job["status"]["ended"], "finished")
    check_equal([one["name"] for one in service.get("/v1/jobs")["jobs"]], ["small"])
    # A client that was away gets the rest; one that knows all gets how the job stands, and the end.
    rest = [n for n, kind, _ in service.events("small", after=numbers[-3]) if kind != "job"]
    check_equal(rest, numbers[-2:])
    check_equal([kind for _, kind, _ in service.events("small", after=numbers[-1])], ["job"])
    check_equal(service.end(), 0)
    # The next service knows it.
    service = Service(folder)
    check_equal(service.job("small")["result"], job["result"])
    check_equal([n for n, kind, _ in service.events("small") if kind != "job"], numbers)
    check_equal(service.end(), 0)


def story_stop_resume_and_scale(folder):
    service = Service(folder)
    service.start(changed(ENDLESS, max_epochs=16), "plain")
    undisturbed = service.wait_for_end("plain")
    service.start(changed(ENDLESS, max_epochs=16), "run")
    service.wait_for_step("run", 20)
    service.post("/v1/jobs/run/scale", {"ranks": 1})
    service.wait_for("run", lambda job: job["status"]["ranks"] == 1, "one process")
    service.post("/v1/jobs/run/stop")
    stopped = service.wait_for_end("run")
    check_equal((stopped["state"], stopped["result"]["failure"]), ("stopped", None))
    check(20 <= stopped["result"]["steps"] < undisturbed["result"]["steps"], stopped)
    check_equal(service.ask("POST", "/v1/jobs/run/stop", {})[0], 409)
    service.post("/v1/jobs/run/resume")
    ended = service.wait_for_end("run")
    check_equal((ended["state"], digest(ended)), ("finished", digest(undisturbed)))
    check_equal(service.ask("POST", "/v1/jobs/run/resume", {})[0], 409)
    service.start(ENDLESS, "now")
    service.wait_for_step("now", 5)
    service.post("/v1/jobs/now/stop", {"now": True})
    job = service.wait_for_end("now")
    check_equal((job["state"], job["result"]["failure"]["kind"]), ("failed", "aborted"))
    # What is not known is null.
    check_equal([job["result"]["failure"][field] for field in ("rank", "hook")], [None] * 2)
    check_equal([job["result"][field] for field in ("weights_digest", "last_checkpoint")], [None] * 2)
    check_equal(service.end(), 0)


def story_how_a_running_job_stands_is_sent_about_once_a_second(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")
    service.wait_for_step("run", 5)
    began, shown, metrics = time.monotonic(), [], 0
    for _, kind, data in service.events("run"):
        if kind == "job":
            shown.append((data["state"], data["status"]["state"]))
            metrics = metrics or 1
        metrics += kind == "metrics" and metrics > 0  # from the first `job` on
        if metrics > 100:
            break
    changes = sum(one != other for one, other in zip(shown, shown[1:]))
    most = 1 + changes + (time.monotonic() - began)
    check(0 < len(shown) <= most, f"{len(shown)} of at most {most}")
    # The end is sent at once, and once.
    service.post("/v1/jobs/run/stop", {"now": True})
    last = [data["state"] for _, kind, data in service.events("run") if kind == "job"]
    check_equal(last.count("failed"), 1, last)
    check_equal(last[-1], "failed")
    check_equal(service.end(), 0)


def story_a_job_is_scaled_before_it_has_started(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")
    check_in("more than the options.ranks of the job, 2", service.ask("POST", "/v1/jobs/run/scale", {"ranks": 3})[1])
    service.post("/v1/jobs/run/scale", {"ranks": 1})
    service.wait_for("run", lambda job: job["status"] and job["status"]["ranks"] == 1, "one process")
    service.post("/v1/jobs/run/stop", {"now": True})
    service.wait_for_end("run")
    check_equal(service.end(), 0)


def story_a_killed_rank_is_shown_and_the_job_goes_on(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")
    service.wait_for_step("run", 10)
    os.kill(service.ranks()[1], signal.SIGKILL)
    job = service.wait_for("run", lambda job: job["status"]["generation"] == 2 and job["status"]["state"] == "active",
                           "a second generation")
    check_equal((job["status"]["restarts"], job["status"]["restarts_left"]), (1, 2))
    check(any(f["kind"] == "signal" and "SIGKILL" in f["what"] for f in job["status"]["newest_failures"]), job)
    failed = next(data for _, kind, data in service.events("run")
                  if kind == "lifecycle" and data["event"] == "rank_failed" and data["failure"]["kind"] == "signal")
    check_equal(failed["rank"], 1)
    service.post("/v1/jobs/run/stop")
    check_equal(service.wait_for_end("run")["state"], "stopped")
    check_equal(service.end(), 0)


def story_each_rank_has_its_throughput_and_waiting(folder):
    service = Service(folder)
    service.start({**SMALL, "options": {**SMALL["options"], "ranks": 3, "batch_size": 6}}, "run")
    service.wait_for_end("run")
    rows = [data["values"] for _, kind, data in service.events("run") if kind == "metrics"]
    wanted = {f"rank/{rank}/{name}" for rank in range(3) for name in ("samples_per_second", "waiting_share")}
    full = [row for row in rows if wanted <= set(row)]
    check(len(full) >= 8, rows)
    check_equal({name for row in rows for name in row if name.startswith("rank/")}, wanted)
    for row in full:
        check(all(row[f"rank/{rank}/samples_per_second"] > 0 for rank in range(3)), row)
        check(all(0 <= row[f"rank/{rank}/waiting_share"] <= 1 for rank in range(3)), row)
    check(len({row["rank/0/samples_per_second"] for row in full}) > 1, full)
    # Ranks measure on their own: equal figures of all ranks would be one rank's.
    check(any(row["rank/0/waiting_share"] != row["rank/1/waiting_share"] for row in full), full)
    check_equal(service.end(), 0)


def story_troupe_report_reads_the_folder_of_a_job(folder):
    service = Service(folder)
    place = os.path.join(folder, "jobs", "run")

    def report():
        page = os.path.join(folder, "page.html")
        shown = check_code(troupe("report", place, "--output", page, "--force", "--json"), 0)
        check(os.path.getsize(page) > 10_000, "the page is empty")
        return json.loads(shown.out)["runs"][0]

    service.start(ENDLESS, "run")
    service.wait_for_step("run", 5)
    check_equal(report()["state"], "running")
    service.post("/v1/jobs/run/stop", {"now": True})
    service.wait_for_end("run")
    check_equal(report()["state"], "failed")
    check_equal(service.ask("DELETE", "/v1/jobs/run")[0], 200)
    service.start(SMALL, "run")
    service.wait_for_end("run")
    shown = report()
    check_equal((shown["state"], shown["notes"], shown["settings"]["options.batch_size"]), ("finished", [], "8"))
    curves = {one["name"]: one for one in shown["metrics"]["series"]}
    check_in("rank/1/waiting_share", curves)
    sent = [(data["step"], data["values"]["train/loss"]) for _, kind, data in service.events("run")
            if kind == "metrics" and "train/loss" in data["values"]]
    loss = dict(zip(curves["train/loss"]["step"], curves["train/loss"]["value"]))
    check_equal(loss, dict(sent))
    life = [data["event"] for _, kind, data in service.events("run") if kind == "lifecycle"]
    check_equal([one["event"] for one in shown["events"]["list"]], life)
    check_equal(service.end(), 0)


def story_a_job_that_has_ended_is_removed_with_its_files(folder):
    service = Service(folder)
    place = os.path.join(folder, "jobs", "run")
    service.start(ENDLESS, "run")
    service.wait_for_step("run", 5)
    status, text = service.ask("DELETE", "/v1/jobs/run")
    check_equal(status, 409)
    check_in("stop it, and remove it after its end", text)
    check_equal(service.job("run")["state"], "running")
    service.post("/v1/jobs/run/stop")
    service.wait_for_end("run")
    check(os.path.isdir(os.path.join(place, "checkpoints")), "the run has its files")
    check_equal(service.ask("DELETE", "/v1/jobs/run"), (200, '{"ok":true}\n'))
    check_equal(service.ask("DELETE", "/v1/jobs/run")[0], 404)
    check_equal(service.ask("GET", "/v1/jobs/run/events")[0], 404)
    check_equal(service.get("/v1/jobs")["jobs"], [])
    check(not os.path.exists(place), "the job's folder is still there")
    # The name is free, and the new job has nothing of the old one.
    service.start(SMALL, "run")
    check_equal(service.wait_for_end("run")["result"]["steps"], 32)
    check_equal(next(service.events("run"))[0], 1)
    check_equal(service.end(), 0)
    check_equal(os.listdir(os.path.join(folder, "removed")), [])
    # The files that a killed service did not get to are deleted by the next one. It does not wait for that in the end.
    os.makedirs(os.path.join(folder, "removed", "old", "checkpoints"))
    service = Service(folder)
    check_equal([one["name"] for one in service.get("/v1/jobs")["jobs"]], ["run"])
    while os.listdir(os.path.join(folder, "removed")):
        service.get("/v1/jobs")
    check_equal(service.end(), 0)


def story_sigterm_saves_the_jobs_and_sigkill_loses_few_steps(folder):
    service = Service(os.path.join(folder, "plain"))
    request = changed(ENDLESS, max_epochs=15, checkpoint_every_n_steps=20)
    service.start(request, "run")
    undisturbed = service.wait_for_end("run")
    check_equal(service.end(), 0)
    place = os.path.join(folder, "place")
    service = Service(place)
    service.start(request, "run")
    service.start(changed(ENDLESS), "stopped")
    service.wait_for_step("stopped", 5)
    service.post("/v1/jobs/stopped/stop")
    service.wait_for_end("stopped")
    before = service.wait_for_step("run", 60)["status"]["step"]
    check_equal(service.end(signal.SIGTERM), 0)
    service = Service(place)
    job = service.wait_for("run", lambda job: job["status"] is not None, "a status")
    check(job["status"]["step"] >= before, job)
    check_equal(service.job("stopped")["state"], "stopped")  # by a client: it is not resumed
    step = service.wait_for_step("run", before + 40)["status"]["step"]
    service.end(signal.SIGKILL)
    service = Service(place)
    job = service.wait_for("run", lambda job: job["status"] is not None, "a status")
    check(step - 60 <= job["status"]["step"], (step, job))
    ended = service.wait_for_end("run")
    check_equal((ended["state"], digest(ended)), ("finished", digest(undisturbed)))
    check_equal(service.end(), 0)


def restarted_with_three(folder):
    """A service that resumes one of three jobs at a time, and the names of these."""
    names = ["a", "b", "c"]
    service = Service(folder)
    for name in names:
        service.start(ENDLESS, name)
    for name in names:
        service.wait_for_step(name, 5)
    check_equal(service.end(), 0)
    return names, Service(folder, "--jobs", "1")


def story_a_restart_resumes_as_many_jobs_as_may_run(folder):
    names, service = restarted_with_three(folder)
    service.wait_for_step("a", 5)
    check_equal([service.job(name)["state"] for name in names], ["running", "waiting", "waiting"])
    check_equal(service.ask("POST", "/v1/jobs/b/resume", {})[0], 429)

    def streams_of(name, count):
        clients = [service.connection() for _ in range(count)]
        for client in clients:
            client.request("GET", f"/v1/jobs/{name}/events")
        answers = [client.getresponse().status for client in clients]
        for client in clients:
            client.close()
        return answers == [200] * count

    # Streams of a job without news whose clients are gone end, too.
    check(streams_of("b", STREAMS - 4), "too few streams")
    service.wait_for("a", lambda _: streams_of("a", 8), "an end of streams")
    service.post("/v1/jobs/b/stop")
    check_equal([service.job(name)["state"] for name in names], ["running", "stopped", "waiting"])
    check(os.path.exists(os.path.join(folder, "jobs", "b", "result.json")), "watch shows it as running")
    shutil.rmtree(os.path.join(folder, "jobs", "c"))
    service.post("/v1/jobs/a/stop")
    service.wait_for_end("a")
    failed = service.wait_for("c", lambda job: job["state"] == "failed", "its failure")
    check_in("the folder of the job is gone", failed["result"]["failure"]["what"])
    check(not os.path.exists(os.path.join(folder, "jobs", "c")), "the folder is there again")
    check_equal(service.ask("DELETE", "/v1/jobs/c")[0], 200)
    check_equal(service.end(), 0)


def story_a_waiting_job_gets_its_turn_when_another_one_ends(folder):
    names, service = restarted_with_three(folder)
    service.post("/v1/jobs/b/stop")
    service.post("/v1/jobs/a/stop")
    service.wait_for("c", lambda job: job["state"] == "running", "its turn")
    check_equal(service.job("a")["state"], "stopped")
    check_equal(service.end(), 0)
    service = Service(folder, "--jobs", "1")
    check_equal([service.job(name)["state"] for name in names], ["stopped", "stopped", "running"])
    check_equal(service.end(), 0)


def story_a_folder_that_is_gone_or_damaged_costs_only_its_job(folder):
    service = Service(folder)
    for name in ("gone", "damaged", "good"):
        service.start(ENDLESS, name)
        service.post(f"/v1/jobs/{name}/stop")
        check_equal(service.wait_for_end(name)["state"], "stopped")
    shutil.rmtree(os.path.join(folder, "jobs", "gone"))
    status, text = service.ask("POST", "/v1/jobs/gone/resume", {})
    check_equal(status, 409)
    check_in("is gone: remove the job", text)
    check_equal(service.job("gone")["state"], "stopped")
    check_equal(service.ask("DELETE", "/v1/jobs/gone")[0], 200)
    check_equal(service.end(), 0)
    damaged = os.path.join(folder, "jobs", "damaged", "job.json")
    for wrong in ("{", "[]", '{"request": 1}', '{"request": {}, "stop_wanted": 1}', None):
        os.remove(damaged)
        if wrong is None:
            os.mkdir(damaged)
        else:
            with open(damaged, "w", encoding="utf-8") as file:
                file.write(wrong)
        service = Service(folder)
        check_equal([one["name"] for one in service.get("/v1/jobs")["jobs"]], ["good"], wrong)
        status, text = service.ask("POST", "/v1/jobs", {**SMALL, "name": "damaged"})
        check_equal(status, 409)
        check_in("move the folder away", text)
        check_equal(service.end(), 0)
        service.notes_end()
        check_in("jobs/damaged: job.json is missing or damaged", service.notes)


def story_a_damaged_result_costs_only_itself(folder):
    service = Service(folder)
    service.start(SMALL, "run")
    ended = service.wait_for_end("run")
    check_equal(service.end(), 0)
    file = os.path.join(folder, "jobs", "run", "result.json")
    for wrong in ("{", '{"status": 5}', '{"status": "running"}', "{}"):
        with open(file, "w", encoding="utf-8") as out:
            out.write(wrong)
        service = Service(folder)  # it goes on with the job, which has no step left
        again = service.wait_for_end("run")
        check_equal((again["state"], digest(again)), ("finished", digest(ended)), wrong)
        check_equal(len(service.get("/v1/jobs")["jobs"]), 1)
        check_equal(service.end(), 0)
    os.remove(file)
    os.mkdir(file)
    service = Service(folder)
    check_equal(service.wait_for_end("run")["state"], "finished")
    check_equal(service.end(), 0)


def story_jobs_that_have_ended_hold_no_descriptors(folder):
    service = Service(folder)
    service.start(SMALL, "first")
    service.wait_for_end("first")
    events = [n for n, kind, _ in service.events("first") if kind != "job"]
    check_equal(service.end(), 0)
    for number in range(60):
        shutil.copytree(os.path.join(folder, "jobs", "first"), os.path.join(folder, "jobs", f"old-{number}"))
    service = Service(folder, before=("prlimit", "--nofile=40:100"))
    with open(f"/proc/{service.process.pid}/limits", encoding="utf-8") as file:
        check_equal([line.split()[3:5] for line in file if line.startswith("Max open files")], [["100", "100"]])
    check_equal({one["state"] for one in service.get("/v1/jobs")["jobs"]}, {"finished"})
    for name in ("first", "old-59"):
        check_equal([n for n, kind, _ in service.events(name) if kind != "job"], events)
    check(len(os.listdir(f"/proc/{service.process.pid}/fd")) < 50, "jobs hold descriptors")
    service.start(changed(SMALL, placement="threads"), "next")
    check_equal(service.wait_for_end("next")["state"], "finished")
    check_equal(service.end(), 0)


def story_two_services_do_not_share_a_folder(folder):
    service = Service(folder)
    second = subprocess.run([SERVICE, "--folder", folder, "--port", "0"], capture_output=True, text=True,
                            check=False)
    check_equal(second.returncode, 3)
    check_in("another service runs in", second.stderr)
    check_equal(service.end(), 0)


def story_wrong_requests_are_answered(folder):
    service = Service(folder, "--jobs", "1")
    for method, path, body, status, part in (
            ("GET", "/nothing", None, 404, "there are /"), ("GET", "/v1/jobs/none", None, 404, 'no job \\"none\\"'),
            ("DELETE", "/v1/jobs", None, 405, "this address takes"), ("PUT", "/", None, 405, "this address takes"),
            ("POST", "/v1/jobs", "no json", 400, "no JSON object"), ("POST", "/v1/jobs", "[1]", 400, "no JSON object"),
            ("POST", "/v1/jobs", "[" * 60000, 400, "no JSON object"),
            ("POST", "/v1/jobs", {"rank": 2}, 400, 'no field \\"rank\\"'),
            ("POST", "/v1/jobs", {"name": "../up"}, 400, "a-z"),
            ("POST", "/v1/jobs", {"options": {"ranks": 0}}, 400, "options.ranks is 0"),
            ("POST", "/v1/jobs", {"options": {"ranks": 1e99}}, 400, "options.ranks is"),
            ("POST", "/v1/jobs", {"options": {"placement": "moon"}}, 400, "processes, threads"),
            ("POST", "/v1/jobs", {"model": {"hidden": "wide"}}, 400, "model.hidden"),
            ("POST", "/v1/jobs", {"data": {"name": "csv"}}, 400, "data.path"),
            ("POST", "/v1/jobs", {"data": {"path": "/my.csv", "features": 3, "classes": 4}}, 400,
             "data.path is of csv"),
            ("POST", "/v1/jobs", {"data": {"features": 3}}, 400, r"data.name is \"synthetic\""),
            ("POST", "/v1/jobs", {"data": {"name": "csv", "path": "/my.csv", "features": 3, "samples": 5}}, 400,
             "data.samples is of synthetic"),
            ("POST", "/v1/jobs", {"data": {"name": "fashion_mnist", "classes": 4}}, 400,
             "data.classes is of synthetic and csv"),
            ("POST", "/v1/jobs", {"options": {"placement": "threads", "spares": 2}}, 400,
             "options.spares are processes"),
            ("POST", "/v1/jobs", {"options": []}, 400, "options is no JSON object")):
        got, text = service.ask(method, path, body)
        check_equal(got, status, (method, path, text))
        check_in(part, text)
    for status, kind in ((415, "text/plain"), (415, "application/jsonx"), (400, "Application/JSON ;charset=utf-8")):
        check_equal(service.ask("POST", "/v1/jobs", "[1]", **{"Content-Type": kind})[0], status, kind)
    check_equal(service.ask("GET", "/v1/jobs", Host="evil.example")[0], 403)
    service.start(ENDLESS, "run")
    check_equal(service.ask("POST", "/v1/jobs", {**SMALL, "name": "more"})[0], 429)
    for path, body in (("stop", {"now": 1}), ("scale", {"ranks": 0}), ("scale", {}), ("resume", {"now": True})):
        check_equal(service.ask("POST", f"/v1/jobs/run/{path}", body)[0], 400)
    check_in(r'stop takes no \"nwo\", but \"now\"', service.ask("POST", "/v1/jobs/run/stop", {"nwo": True})[1])
    for number in ("x", "1x", 2**64):
        check_equal(service.ask("GET", f"/v1/jobs/run/events?a=b&after={number}")[0], 400)
    check_equal(service.ask("GET", "/v1/jobs", Host="LocalHost")[0], 200)
    for path, text in (("/healthz", "ok\n"), ("http://a.proxy:80/healthz", "ok\n"), ("/readyz", "ready\n")):
        check_equal(service.ask("GET", path), (200, text))
    status, text = service.ask("GET", "/metrics")
    check_equal(status, 200)
    check_in("troupe_service_jobs 1\n", text)
    check_equal(service.end(), 0)


def answer_to(service, request):
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def story_bad_clients_cost_only_themselves(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")
    service.wait_for_step("run", 5)
    silent = [socket.create_connection(("127.0.0.1", service.port), timeout=60) for _ in range(100)]
    slow = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    slow.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    # It asks for events and never reads them.
    deaf = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    deaf.sendall(b"GET /v1/jobs/run/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for status, request in ((b"400", b"\x16\x03\x01\x00\xff" * 20 + b"\r\n\r\n"),
                            (b"431", b"GET / HTTP/1.1\r\nX: " + b"x" * 100000),
                            (b"413", b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n")):
        head, body = answer_to(service, request).split(b"\r\n\r\n")
        check_in(status, head[:20])
        check_in(b"application/json", head)
        check_equal(list(json.loads(body)), ["error"])
    check_equal(service.ask("GET", "/healthz")[0], 200)
    # A client that waits until it is asked for the body. HTTP/1.0 does not know that answer.
    for version, asks in ((b"1.1", b"HTTP/1.1 100 Continue\r\n\r\n"), (b"1.0", b"")):
        asking = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        asking.sendall(b"POST /v1/jobs/run/stop HTTP/" + version + b"\r\nHost: localhost\r\n"
                       b"Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n")
        check_equal(service.ask("GET", "/healthz")[0], 200)  # the header is read before
        check_equal(asking.recv(len(asks)), asks)
        asking.sendall(b'{"soon":true}')
        check_in(b" 400 ", asking.recv(100)[:13])
        asking.close()
    for client in (*silent, slow):
        try:
            check_equal(client.recv(100), b"", "a silent connection stays open")
        except ConnectionResetError:
            pass
        client.close()
    first = service.job("run")["status"]["step"]
    check(service.wait_for_step("run", first + 1), "the job goes on")
    deaf.close()
    check_equal(service.end(), 0)


def story_a_token_is_asked_for(folder):
    token = os.path.join(folder, "token")
    with open(token, "w", encoding="utf-8") as f:
        f.write("a-secret-of-some-length\n")
    os.chmod(token, 0o644)
    open_to_all = subprocess.run([SERVICE, "--token-file", token], capture_output=True,
                                 text=True, check=False)
    check_equal(open_to_all.returncode, 3)
    check_in("chmod 600", open_to_all.stderr)
    os.chmod(token, 0o600)
    closed = os.path.join(folder, "closed")
    os.mkdir(closed, 0o700)
    wrong = subprocess.run([SERVICE, "--token-file", closed], capture_output=True, text=True, check=False)
    check_equal((wrong.returncode, wrong.stderr),
                (3, f"error: --token-file {closed}: it is no regular file; name the file with the token\n"))
    service = Service(os.path.join(folder, "place"), "--token-file", token)
    for path in ("/v1/jobs", "/metrics", "/v1/jobs/x/events"):
        check_equal(service.ask("GET", path)[0], 401)
        check_equal(service.ask("GET", path, Authorization="Bearer a-secret-of-some-lengtH")[0], 401)
    for scheme in ("Bearer", "bearer"):
        check_equal(service.ask("GET", "/v1/jobs", Authorization=f"{scheme} a-secret-of-some-length")[0], 200)
    for path in ("/", "/healthz", "/readyz"):
        check_equal(service.ask("GET", path)[0], 200)
    check_equal(service.end(), 0)
    public = subprocess.run([SERVICE, "--address", "0.0.0.0", "--port", "0"], capture_output=True,
                            text=True, check=False, cwd=folder)
    check_equal(public.returncode, 3)
    check_in("--token-file", public.stderr)


def story_flags_are_read_as_those_of_troupe(folder):
    def said(*flags):
        done = subprocess.run([SERVICE, *flags], capture_output=True, text=True, check=False, cwd=folder)
        return done.returncode, done.stdout, done.stderr

    for flags, why in ((["--prot", "80"], 'unknown flag "--prot"; did you mean "--port"?'),
                       (["serve"], 'unknown argument "serve"'),
                       (["--port", "65536"], "--port 65536: from 0 to 65535"),
                       (["--jobs", "0"], "--jobs 0: from 1 to 1000"),
                       (["--token_file", "missing"], "--token-file missing"),
                       (["--key", "key.pem"], "--certificate")):
        code, out, error = said(*flags)
        check_in(why, error)
        check_equal((code, out), (3 if "missing" in flags else 2, ""))
    for name, why in (("", "--folder is empty"), ("a" * 300, "the folder cannot be written")):
        code, _, error = said("--folder", name)
        check_in(why, error)
        check_equal(code, 3)
    code, out, error = said("--version")
    check_equal((code, out.split()[0], error), (0, "troupe_service", ""))
    code, out, error = said("--help")
    check_equal((code, error), (0, ""))
    for flag in ("--folder DIR", "--address IP", "--port N", "--token-file FILE", "--certificate FILE", "--jobs N"):
        check_in(flag, out)
    check_equal(os.listdir(folder), [])


def story_tls(folder):
    if not shutil.which("openssl"):
        print("SKIPPED  story_tls: there is no openssl to make a certificate")
        return
    key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "cert.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    service = Service(os.path.join(folder, "place"), "--certificate", certificate, "--key", key)
    check_in("https://", service.notes)
    check_equal(service.ask("GET", "/healthz"), (200, "ok\n"))
    service.start(SMALL, "small")
    check_equal(service.wait_for_end("small")["state"], "finished")
    check(b"200" not in answer_to(service, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"), "plain HTTP is served")
    check_equal(service.ask("GET", "/healthz")[0], 200)
    check_equal(service.end(), 0)


def story_one_stream_too_many_is_refused_until_others_end(folder):
    service = Service(folder)
    service.start(ENDLESS, "run")

    def opened():
        client = service.connection()
        client.request("GET", "/v1/jobs/run/events")
        return client, client.getresponse()

    streams = [opened() for _ in range(STREAMS)]
    check_equal([answer.status for _, answer in streams], [200] * STREAMS)
    client, answer = opened()
    check_equal((answer.status, answer.read()), (503, b'{"error":"too many streams are open: close one"}\n'))
    client.close()
    check_equal(service.ask("GET", "/healthz")[0], 200)
    service.post("/v1/jobs/run/stop")
    for client, answer in streams:
        check_in(b"event: job", answer.read())
        client.close()
    check_equal(opened()[1].status, 200)
    check_equal(service.end(), 0)


def story_one_connection_too_many_closes_the_oldest(folder):
    service = Service(folder)
    clients = [socket.create_connection(("127.0.0.1", service.port), timeout=60) for _ in range(CONNECTIONS)]
    for client in clients:
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
    check_equal(service.ask("GET", "/healthz")[0], 200)
    try:
        check_equal(clients[0].recv(100), b"", "the oldest one is open")
    except ConnectionResetError:
        pass
    for client in clients[1:]:
        client.sendall(b"Host: localhost\r\nConnection: close\r\n\r\n")
        check_in(b" 200 ", client.recv(100))
        client.close()
    check_equal(service.end(), 0)


def story_answers_are_fast_while_all_cores_train(folder):
    service = Service(folder)
    service.start(changed(ENDLESS, ranks=max(2, os.cpu_count())), "run")
    service.wait_for_step("run", 20)
    for path in ("/healthz", "/v1/jobs", "/v1/jobs/run", "/metrics"):
        found = timed(lambda: check_equal(service.ask("GET", path)[0], 200), 60)
        median, late, worst = found[30], found[58], found[-1]
        print(f"{path}: median {median:.1f} ms, 98 % {late:.1f} ms, worst {worst:.1f} ms")
        check(median < BOUND_MS, f"{path}: the median answer takes {median:.1f} ms")
    check_equal(service.end(), 0)


if __name__ == "__main__":
    main(globals())
