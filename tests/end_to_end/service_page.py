"""Goal: in a real browser the live page of the service shows a job as it trains, and its buttons work."""

import contextlib
import json
import os
import signal
import sys
import time
import urllib.request

import browser
from troupe_program import PROGRAM, check, check_equal, fail, main
from troupe_service import ENDLESS, SMALL, Service, changed

DRIVERS = ["chromedriver"]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Driven:
    """A headless Chromium that chromedriver controls, over the WebDriver protocol, until the end of a `with`."""

    def __init__(self, folder):
        import shutil
        import subprocess
        self._log = open(os.path.join(folder, "driver.log"), "w+", encoding="utf-8")
        self._driver = subprocess.Popen([next(filter(None, map(shutil.which, DRIVERS))), "--port=0"],
                                        stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True)
        for line in self._driver.stdout:
            if "successfully on port" in line:
                port = line.rstrip(".\n ").split()[-1]
                self._base = f"http://127.0.0.1:{port}"
                break
        options = {"binary": browser.find(), "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                                                      f"--user-data-dir={folder}/profile"]}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self._base += f"/session/{made['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        """Ends the driver and its browser, whatever they do. An error here would hide that of the story."""
        with contextlib.suppress(OSError):
            self._call("DELETE", "")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        self._log.close()

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def size(self, width, height):
        self._call("POST", "/window/rect", {"width": width, "height": height})

    def run(self, script, *arguments):
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script, what):
        """Waits until the page says so: each look is a request to the browser, which yields to the page."""
        until = time.monotonic() + 90
        while time.monotonic() < until:
            if found := self.run(f"return {script}"):
                return found
        return fail(f"{what} does not happen\n{self.run('return document.body.innerText')}\n{self.console()}")

    def console(self):
        return [one["message"] for one in self._call("POST", "/se/log", {"type": "browser"})]

    def click(self, selector):
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def write(self, selector, text):
        self._call("POST", f"/element/{self._find(selector)}/clear", {})
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def confirm(self):
        """Answers the page's question with yes."""
        self._call("POST", "/alert/accept", {})

    def _find(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def picture(self, path):
        import base64
        with open(path, "wb") as f:
            f.write(base64.b64decode(self._call("GET", "/screenshot")))


def pictures():
    """The folder that TROUPE_PICTURES names, for a person who looks at the pages."""
    return os.environ.get("TROUPE_PICTURES")


# Notes each moment at which the card of a job names another state than the figures of the job.
COMPARES = """window.unequal = [];
new MutationObserver(() => {
  const card = document.querySelector('.pick[aria-pressed=true] .quiet')?.textContent;
  const label = [...document.querySelectorAll('#job dt')].find((one) => one.textContent === 'now');
  const now = label?.nextSibling.textContent;
  if (card && now && !card.startsWith(now)) window.unequal.push([card, now]);
}).observe(document.getElementById('page'), { childList: true, subtree: true, characterData: true });"""


def check_job_and_buttons(page, service):
    page.size(1280, 1700)
    page.open(f"http://127.0.0.1:{service.port}/")
    page.wait_for("document.getElementById('line').textContent === 'no job yet'", "the empty page")
    page.click("#new")
    page.write("[name=name]", "by-hand")
    page.write("[name=max_epochs]", "100000")
    page.write("[name=hidden]", "512, 512")
    page.click("#start button")
    page.wait_for("document.querySelectorAll('#curves .chart path.line').length > 0", "a curve")
    page.run(COMPARES)
    page.wait_for("document.getElementById('line').textContent === '1 job, 1 running'", "the number of jobs")
    service.wait_for_step("by-hand", 30)
    os.kill(service.ranks()[1], signal.SIGKILL)
    page.wait_for("document.querySelectorAll('#timeline .failure').length > 0", "the failure in the timeline")
    page.wait_for("document.querySelectorAll('#timeline .generation').length > 1", "a second generation")
    page.wait_for("document.querySelectorAll('#work .chart').length > 0", "the throughput")
    page.wait_for("document.getElementById('job').innerText.includes('samples/s')", "the rate")
    titles = "[...document.querySelectorAll('#work .chart h3')].map((h) => h.textContent)"
    for part in ("Samples per second, by rank", "Waiting in collectives, by rank"):
        page.wait_for(f"{titles}.some((t) => t.startsWith('{part}'))", f"the chart of {part}")
    for chart in range(1, 3):
        lines = f"document.querySelectorAll('#work .chart')[{chart}].querySelectorAll('path.line:not(.raw)').length"
        page.wait_for(f"{lines} === 2", "a line per rank")
    page.wait_for("document.querySelectorAll('#waiting .bars b').length === 2", "a bar per rank")
    check(all(text.endswith("%") for text in page.run(
        "return [...document.querySelectorAll('#waiting .bars b')].map((b) => b.textContent)")))
    check(not page.run("return document.getElementById('job').innerText.includes('rank/')"), "raw names of figures")
    events = page.run("return document.querySelector('#job details').textContent")
    for part in ("rank failed", "SIGKILL", "generation forming"):
        check(part in events, events)
    shown = page.run("return document.getElementById('job').innerText")
    for part in ("by-hand", "running", "restarts", "samples/s"):
        check(part in shown, shown)
    if pictures():
        page.picture(os.path.join(pictures(), "live.png"))
    page.run("document.getElementById('ranks').value = ''")
    page.write("#ranks", "1")
    page.click("#scale")
    service.wait_for("by-hand", lambda job: job["status"]["ranks"] == 1, "one process")
    mark = "document.querySelector('#timeline .scale title')?.textContent"
    page.wait_for(f"{mark}?.startsWith('scale request')", "its mark")
    check_equal(page.run("return window.unequal"), [], "a card and its job disagree")
    labels = page.run("return [...document.querySelectorAll('#job dt')].map((one) => one.textContent)")
    check("training loss" in labels and not any("/" in label and label != "samples/s" for label in labels), labels)
    legends = page.run("return [...document.querySelectorAll('.legend')].map((one) => one.textContent).join()")
    check("training" in legends and "rank 1" in legends and "/" not in legends, legends)
    page.click("#stop")
    page.wait_for("document.querySelector('#job .pill').textContent === 'stopped'", "the stop")
    check_equal(service.job("by-hand")["state"], "stopped")
    check(page.run("return document.getElementById('stop').disabled"))
    asked = "performance.getEntriesByType('resource').filter((one) => %s.test(one.name)).length"
    streams, lists = asked % "/events/", asked % "/jobs$/"
    before = page.run(f"return {streams}")
    page.wait_for(f"{lists} > {page.run(f'return {lists}') + 2}", "three more lists of jobs")
    # One request may have been under way.
    check(page.run(f"return {streams}") <= before + 1, "the page asks again for the stream of an ended job")
    page.click("#resume")
    page.wait_for("document.querySelector('#job .pill')?.textContent === 'running'", "the resumed job")
    check(page.run("return document.getElementById('remove').disabled"))
    page.click("#theme")
    page.size(390, 1700)
    wide = page.wait_for("document.documentElement.scrollWidth <= window.innerWidth + 1", "a page as wide as a phone")
    check(wide)
    if pictures():
        page.picture(os.path.join(pictures(), "phone.png"))
    page.click("#stop")
    page.wait_for("document.querySelector('#job .pill').textContent === 'stopped'", "the second stop")
    page.click("#remove")
    page.confirm()
    page.wait_for("document.getElementById('line').textContent === 'no job yet'", "the removal")
    check_equal(page.run("return document.getElementById('job').innerText"), "")
    check_equal(service.get("/v1/jobs")["jobs"], [])
    # The page's stream of the removed job may see that it is gone before the page does.
    noise = [line for line in page.console() if "favicon" not in line and "404 (Not Found)" not in line]
    check_equal(noise, [])


def story_the_page_shows_a_job_and_its_buttons_work(folder):
    service = Service(os.path.join(folder, "place"))
    with Driven(folder) as page:
        check_job_and_buttons(page, service)
    check_equal(service.end(), 0)


def story_a_job_that_has_ended_is_in_its_last_epoch(folder):
    service = Service(os.path.join(folder, "place"))
    service.start(SMALL, "short")
    service.wait_for_end("short")
    with Driven(folder) as page:
        page.open(f"http://127.0.0.1:{service.port}/")
        label = "[...document.querySelectorAll('#job dt')].find((one) => one.textContent === 'epoch')"
        check_equal(page.wait_for(f"{label}?.nextSibling.textContent", "the epoch"), "2/2")
    check_equal(service.end(), 0)


def story_a_job_of_many_checkpoints_has_some_of_them(folder):
    place = os.path.join(folder, "place")
    service = Service(place)
    service.start(SMALL, "long")
    service.wait_for_end("long")
    check_equal(service.end(), 0)
    with open(os.path.join(place, "jobs/long/journal.jsonl"), "r+", encoding="utf-8") as f:
        events = [json.loads(line) for line in f]
        at = next(i for i, event in enumerate(events) if event.get("event") == "checkpoint_written")
        events[at:at] = [{**events[at], "step": step} for step in range(16, 5016)]
        f.seek(0)
        f.writelines(json.dumps(event) + "\n" for event in events)
    service = Service(place)
    with Driven(folder) as page:
        page.open(f"http://127.0.0.1:{service.port}/")
        page.wait_for("document.querySelector('#job .pill')?.textContent === 'finished'", "the job")
        count = sum(event["kind"] == "lifecycle" for event in events)
        line = f"Events (the newest 200 of {count:,})"
        page.wait_for(f"document.querySelector('#job summary')?.textContent === '{line}'", line)
        marks = page.run("return document.querySelectorAll('#timeline .checkpoint').length")
        check(200 <= marks <= 1000, marks)
        page.wait_for("document.querySelectorAll('#timeline .generation.active').length === 1", "the generation")
    check_equal(service.end(), 0)


def story_a_refusal_stays_until_the_next_request(folder):
    service = Service(os.path.join(folder, "place"))
    service.start(changed(ENDLESS, placement="threads"), "threads")
    with Driven(folder) as page:
        page.open(f"http://127.0.0.1:{service.port}/")
        page.wait_for("document.getElementById('scale')?.disabled === false", "the running job")
        page.click("#scale")
        answer = "document.getElementById('answer')?.textContent"
        page.wait_for(f"{answer}?.startsWith('the ranks are threads')", "the refusal")
        lists = "performance.getEntriesByType('resource').filter((one) => /jobs$/.test(one.name)).length"
        page.wait_for(f"{lists} > {page.run(f'return {lists}') + 2}", "three more lists of jobs")
        check(page.run(f"return {answer}").startswith("the ranks are threads"))
        check_equal(page.run("return document.getElementById('line').textContent"), "1 job, 1 running")
        page.click("#stop")
        page.wait_for(f"{answer} === 'asked: threads stop'", "the answer to the next request")
    check_equal(service.end(), 0)


def story_the_page_asks_for_a_token_and_shows_text_as_text(folder):
    token = os.path.join(folder, "token")
    with open(token, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
        f.write("a-secret-of-some-length")
    service = Service(os.path.join(folder, "place"), "--token-file", token, token="a-secret-of-some-length")
    service.start(ENDLESS, "secret")
    with Driven(folder) as page:
        page.open(f"http://127.0.0.1:{service.port}/")
        page.wait_for("!document.getElementById('login').hidden", "the question for a token")
        page.write("#token", "a-secret-of-some-length")
        page.click("#login button")
        page.wait_for("document.querySelector('[data-job=secret]')", "the job")
    check_equal(service.end(), 0)


if __name__ == "__main__":
    import shutil
    if not PROGRAM or not browser.find() or not any(map(shutil.which, DRIVERS)):
        print("SKIPPED: there is no Chromium with its chromedriver (Debian: chromium, chromium-driver)")
        sys.exit(77)
    main(globals())
