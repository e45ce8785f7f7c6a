"""Goal: the page of `troupe report` shows its runs in a browser, and text of a run stays text."""

import json
import os
import re
import sys

import browser
from control import PLACED, held
from troupe_program import PROGRAM, check, check_code, check_equal, check_in, fit, main, troupe

HOSTILE = "<img src=x onerror=\"document.title='run'\">"


def report(folder, *runs):
    page = os.path.join(folder, "page.html")
    check_code(troupe("report", *runs, "--output", page, "--force"), 0)
    return page


def opened(page, **how):
    shown = browser.Page(page, **how)
    check_equal(shown.console, [], "messages on the console")
    check_in('data-ready="true"', shown.dom)
    return shown


def lines(shown):
    """The lines that were drawn: paths with at least a move and a line, or a dot."""
    return shown.count(r'<path class="line" d="M[\d.]+ [\d.]+L')


def charted(shown, title):
    """Whether the chart of this title has a line of several points."""
    found = re.search(re.escape(f"<h3>{title}</h3>") + r".*?</section>", shown.dom, re.S)
    return found and re.search(r'<path class="line" d="M[\d.]+ [\d.]+L', found[0])


def story_a_run_is_drawn_light_dark_and_narrow(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--set", "log_every_n_steps=4", "--checkpoint-every-n-steps", "8"), 0)
    page = report(folder, run)
    for how in ({}, {"dark": True}, {"width": 390}):
        shown = opened(page, **how)
        check_equal(shown.count('<html[^>]*data-theme="dark"'), 1 if how.get("dark") else 0, how)
        check(lines(shown) >= 3, f"{lines(shown)} lines for the losses and the accuracy, {how}")
        check(shown.count('class="generation active"') >= 1, "no generation")
        check(shown.count('class="checkpoint"') >= 1, "no checkpoint")
        check_in("<h3>Loss</h3>", shown.dom)
        for name, label in (("train/loss", "training loss"), ("test/accuracy", "test accuracy")):
            check_in(f'<dt title="{name}">{label}</dt>', shown.dom)
        for title in ("Learning rate", "Samples per second", "Memory of the process (MiB)"):
            check(charted(shown, title), f"no line of {title}")
        check_equal(shown.count(r">1 \w+s<"), 0, "one thing in the plural")


def story_metrics_have_words_and_scale_requests_have_marks(folder):
    run = os.path.join(folder, "run")
    traced = held(run, *PLACED, "--max-restarts", 3, "--max-epochs", 10)
    check_code(troupe("scale", run, "--ranks", 1), 0)
    traced.release()
    check_code(traced.end(), 0)
    # Figures of ranks, as troupe_service logs them, in the place of two metrics.
    metrics = os.path.join(run, "metrics.csv")
    with open(metrics, encoding="utf-8") as f:
        head, rows = f.read().split("\n", 1)
    for rank, name in enumerate(("test/loss", "test/accuracy")):
        check_in(name, head)
        head = head.replace(name, f"rank/{rank}/waiting_share")
    with open(metrics, "w", encoding="utf-8") as f:
        f.write(f"{head}\n{rows}")
    shown = opened(report(folder, run))
    check_equal(shown.count('class="scale"[^>]*><title>scale request, generation 1'), 1, "the mark of the request")
    check_in("<h3>Waiting in collectives, by rank (% of the time)</h3>", shown.dom)
    for line in ("training", "rank 0", "rank 1"):
        check(shown.count(f"</svg>{line}</span>") >= 1, f"no {line} in a legend")
    check_equal(shown.count(r">(train|val|rank/\d+)/\w+</span>"), 0, "raw names in a legend")


def story_text_of_a_run_stays_text(folder):
    run = os.path.join(folder, HOSTILE.replace("/", "_"))
    what = "</script><script>document.title='what'</script>"
    check_code(fit(run, "--fault", f"throw@rank=1,hook=backward,step=9,what={what}"), 1)
    with open(os.path.join(run, "events.jsonl"), "a", encoding="utf-8") as f:
        event = {"time": "2099-01-01T00:00:00.000Z", "event": HOSTILE, "details": {HOSTILE: HOSTILE}}
        f.write(json.dumps(event) + "\n")
    shown = opened(report(folder, run))
    check_equal(shown.count("<img"), 0)
    check_equal(shown.count(r"<title>[^<]*Troupe report</title>"), 1, "a text of the run has set the title")
    check_in("&lt;img src=x onerror=", shown.dom)
    check_in("&lt;/script&gt;&lt;script&gt;document.title='what'", shown.dom)
    check_in('class="pill failed"', shown.dom)
    check(shown.count('class="failure"') >= 1, "the failure is not on the timeline")


def story_metrics_have_the_names_of_every_object(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    names = ["train/constructor", "toString", "valueOf/loss", "rank/0/hasOwnProperty"]
    with open(os.path.join(run, "metrics.csv"), "w", encoding="utf-8") as f:
        f.write(f"step,epoch,{','.join(names)}\n1,0,1,2,3,4\n2,0,2,3,4,5\n")
    shown = opened(report(folder, run))
    for title in ("Constructor", "ToString", "Loss", "HasOwnProperty, by rank"):
        check(charted(shown, title), f"no line of {title}")


def story_runs_are_compared(folder):
    runs = [os.path.join(folder, name) for name in ("first", "second")]
    for run, rate in zip(runs, ("0.05", "0.2")):
        check_code(fit(run, "--learning-rate", rate, "--set", "log_every_n_steps=4"), 0)
    shown = opened(report(folder, *runs))
    check_in("Comparison", shown.dom)
    check_equal(shown.count('<tr class="differs">'), 1, "the learning rate alone differs")
    check_in("optimizer.learning_rate", shown.dom)
    check_in('<td class="key" title="val/accuracy">validation accuracy</td>', shown.dom)
    check_equal(shown.count(r">(train|val|test)/\w+<"), 0, "raw names of metrics")
    check(lines(shown) >= 6, "lines of both runs")


def story_values_that_differ_in_their_last_bit_are_a_flat_line(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    with open(os.path.join(run, "metrics.csv"), "w", encoding="utf-8") as f:
        f.write("step,epoch,val/accuracy\n1,0,0.87\n2,0,0.8700000000000001\n3,0,0.87\n")
    shown = opened(report(folder, run))
    drawn = re.search(r'<path class="line" d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', shown.dom)
    check(drawn and len(set(drawn.groups())) == 1, drawn)


def story_a_run_that_was_killed_is_drawn(folder):
    run = os.path.join(folder, "run")
    check(fit(run, "--fault", "kill@rank=1,hook=backward,step=20").code != 0)
    with open(os.path.join(run, "metrics.csv"), "a", encoding="utf-8") as f:
        f.write("21,")
    shown = opened(report(folder, run))
    check_in('class="pill interrupted"', shown.dom)
    check_in("its last line is incomplete", shown.dom)


if __name__ == "__main__":
    if PROGRAM and not browser.find():
        print("SKIPPED: no Chromium here; the Debian package chromium-headless-shell is one")
        sys.exit(77)
    main(globals())
