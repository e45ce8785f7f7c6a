"""Goal: --trace writes whole JSON in which each rank has its hooks, also when a run is stopped or dies."""

import json
import os
import shutil
import signal

from troupe_program import Traced, check, check_code, check_equal, check_in, fit, main, troupe


class Trace:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.events = json.load(f)["traceEvents"]
        self.names = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}

    def slices(self, process, name):
        return [e for e in self.events if e["ph"] == "X" and self.names[e["pid"]] == process and e["name"] == name]

    def marks(self, kind):
        return [e["name"] for e in self.events if e["ph"] == kind]

    def check_nesting(self):
        """Slices of one track of a rank are disjoint, or one lies inside the other."""
        slices = [e for e in self.events if e["ph"] == "X"]
        for track in sorted({(e["pid"], e["tid"]) for e in slices}):
            open_until = []
            for e in sorted([e for e in slices if (e["pid"], e["tid"]) == track], key=lambda e: (e["ts"], -e["dur"])):
                while open_until and open_until[-1] <= e["ts"] + 0.002:
                    open_until.pop()
                end = e["ts"] + e["dur"]
                check(not open_until or end <= open_until[-1] + 0.002, f"{e} leaves the slice around it")
                open_until.append(end)


def story_each_rank_has_its_hooks(folder):
    for placement in ("threads", "processes"):
        run, path = os.path.join(folder, placement), os.path.join(folder, placement + ".json")
        check_code(fit(run, "--placement", placement, "--trace", path), 0)
        trace = Trace(path)
        check_equal(sorted(trace.names.values()), ["job", "rank 0", "rank 1"])
        for rank in ("rank 0", "rank 1"):
            steps = trace.slices(rank, "training_step")
            check_equal([e["args"]["step"] for e in steps], list(range(32)), placement)
            check_equal(len(trace.slices(rank, "optimizer_step")), 32)
        trace.check_nesting()
        check_in("checkpoint_written", trace.marks("i"))
        check_in("generation 1", trace.marks("B"))
        check_equal(len(trace.marks("B")), len(trace.marks("E")))


def story_a_stopped_run_has_a_whole_trace(folder):
    path = os.path.join(folder, "trace.json")
    running = Traced(os.path.join(folder, "run"), "--max-epochs", "1000000", "--trace", path)
    running.wait_for("backward", step=20)
    running.signal(signal.SIGTERM)
    check_code(running.end(), 143)
    trace = Trace(path)
    check(len(trace.slices("rank 1", "backward")) >= 20)
    check_in("stop_requested", trace.marks("i"))
    check_in("job_ended", trace.marks("i"))


def story_a_rank_that_dies_is_on_the_trace(folder):
    path = os.path.join(folder, "trace.json")
    check_code(fit(os.path.join(folder, "run"), "--placement", "processes", "--max-restarts", "2", "--trace", path,
                   "--fault", "kill@rank=1,hook=backward,step=9"), 0)
    trace = Trace(path)
    trace.check_nesting()
    check_in("rank_failed", trace.marks("i"))
    check_in("generation 2", trace.marks("B"))
    check_equal(sorted({e["args"]["step"] for e in trace.slices("rank 1", "backward")}), list(range(32)))


def story_a_program_that_is_killed_leaves_whole_json(folder):
    path = os.path.join(folder, "trace.json")
    ended = fit(os.path.join(folder, "run"), "--trace", path, "--fault", "kill@rank=1,hook=backward,step=20")
    check_equal(ended.code, -signal.SIGKILL)
    check_in("generation 1", Trace(path).marks("B"))


def story_a_trace_that_cannot_be_written_ends_the_call(folder):
    ended = check_code(fit(os.path.join(folder, "run"), "--trace", "/absent/trace.json"), 3)
    check_in("/absent/trace.json", ended.err)


def story_a_trace_that_cannot_be_written_changes_no_file(folder):
    run, new = os.path.join(folder, "run"), os.path.join(folder, "new")
    check_code(fit(run, "--max-steps", 4), 0)
    with open(os.path.join(run, "config.toml"), "rb") as f:
        before = f.read()
    for flag in ("--trace", "--trace-hooks"):
        ended = check_code(fit(run, "--resume", "latest", flag, "/absent/trace.json"), 3)
        check_in("/absent/trace.json", ended.err)
        check(os.path.exists(os.path.join(run, "result.json")), "a refused call removed result.json")
        with open(os.path.join(run, "config.toml"), "rb") as f:
            check_equal(f.read(), before, flag)
        check_code(fit(new, flag, "/absent/trace.json"), 3)
        check_code(fit(new, "--max-steps", 1), 0)  # the folder holds no run
        shutil.rmtree(new)


def story_a_trace_replaces_a_trace_and_no_other_file(folder):
    run, notes, both = (os.path.join(folder, name) for name in ("run", "notes", "both"))
    for flag in ("--trace", "--trace-hooks"):
        with open(notes, "w", encoding="utf-8") as f:
            f.write("a page of notes\n")
        ended = check_code(fit(run, flag, notes), 3)
        check_in(f"{notes}: it is there already", ended.err)
        check_in(f"name another file with {flag}", ended.err)
        with open(notes, encoding="utf-8") as f:
            check_equal(f.read(), "a page of notes\n")
        check(not os.path.exists(run), "a refused call leaves no folder")
    ended = check_code(fit(run, "--trace", both, "--trace-hooks", os.path.join(folder, ".", "both")), 2)
    check_in("both name", ended.err)
    for name, flag in (("slices", "--trace"), ("lines", "--trace-hooks")):
        path = os.path.join(folder, name)
        for again in ("first", "second"):
            check_code(fit(os.path.join(folder, name + again), "--max-steps", 1, flag, path), 0)
        other = "--trace-hooks" if flag == "--trace" else "--trace"
        check_code(fit(run, other, path), 3)


def story_a_chart_replaces_a_chart_and_no_other_file(folder):
    notes = os.path.join(folder, "notes")
    with open(notes, "w", encoding="utf-8") as f:
        f.write("a page of notes\n")
    check_in("--chart", check_code(troupe("simulate", "--steps", 2, "--chart", notes), 3).err)
    with open(notes, encoding="utf-8") as f:
        check_equal(f.read(), "a page of notes\n")


if __name__ == "__main__":
    main(globals())
