"""Goal: SIGHUP stops a fit and saves its work, as SIGTERM does. A second signal ends it at once and reports what is
saved."""

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import termios

from troupe_program import (PROGRAM, SMALL, Traced, check, check_code, check_equal, check_in, check_same_metrics,
                            checkpoints_of, environment, fit, is_at, main, metrics_of, result_of, troupe)

# A fit that only a signal ends.
ENDLESS = ["--max-epochs", 100_000, "--limit-val-batches", 0]


def check_stopped(run):
    result = result_of(run)
    check_equal((result["status"], result["failure"]), ("stopped", None))
    check_equal(checkpoints_of(run)[-1], f"step-{result['steps']:08}")


def story_closing_the_terminal_stops_the_fit_and_saves_its_work(folder):
    run, fifo = os.path.join(folder, "run"), os.path.join(folder, "trace")
    os.mkfifo(fifo)
    ours, terminal = pty.openpty()
    words = [PROGRAM, "fit", "--run-dir", run, *SMALL, *ENDLESS, "--trace-hooks", fifo]
    with subprocess.Popen([str(w) for w in words], stdin=terminal, stdout=terminal, stderr=terminal,
                          env=environment({}), start_new_session=True,
                          preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) as program:
        os.close(terminal)
        with open(fifo, encoding="utf-8") as trace:
            for line in trace:
                if json.loads(line)["step"] == 5:
                    break
            os.close(ours)
            for line in trace:
                pass
        check_equal(program.wait(), 129)
    check_stopped(run)


def story_a_reader_of_the_output_that_is_gone_costs_no_work(folder):
    # As `troupe fit 2>&1 | tee log`, where the terminal's Ctrl-C ends tee as well.
    run, fifo = os.path.join(folder, "run"), os.path.join(folder, "trace")
    os.mkfifo(fifo)
    ours, output = os.pipe()
    words = [PROGRAM, "fit", "--run-dir", run, *SMALL, *ENDLESS, "--trace-hooks", fifo]
    with subprocess.Popen([str(w) for w in words], stdout=output, stderr=output, env=environment({})) as program:
        os.close(output)
        with open(fifo, encoding="utf-8") as trace:
            for line in trace:
                if json.loads(line)["step"] == 5:
                    break
            os.close(ours)
            program.send_signal(signal.SIGINT)
            for line in trace:
                pass
        check_equal(program.wait(), 130)
    check_stopped(run)


def fill(pipe):
    """Leaves no room in the pipe, so that the next write to it waits for a reader."""
    own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
        try:
            while True:
                os.write(own, b"x" * size)
        except BlockingIOError:
            pass
    os.close(own)


def ended_unread(run, end, *more):
    """The exit code of a fit whose standard error is a full pipe from rank 0's step 5 on. `end` ends it then."""
    fifo = f"{run}.trace"
    os.mkfifo(fifo)
    ours, output = os.pipe()
    words = [PROGRAM, "fit", "--run-dir", run, *SMALL, *ENDLESS, *more, "--trace-hooks", fifo]
    with subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=output,
                          env=environment({})) as program:
        with open(fifo, encoding="utf-8") as trace:
            for line in trace:
                if is_at(json.loads(line), "training_step", {"rank": 0, "step": 5}):
                    break
            fill(output)
            end(program)
            for line in trace:
                pass
        code = program.wait()
    os.close(ours)
    os.close(output)
    return code


def story_a_stop_reaches_a_fit_whose_standard_error_is_full(folder):
    for name, end, code in (("signal", lambda program: program.send_signal(signal.SIGTERM), 143),
                            ("command", lambda _: check_code(troupe("stop", os.path.join(folder, "command")), 0), 75)):
        run = os.path.join(folder, name)
        check_equal(ended_unread(run, end), code)
        check_stopped(run)


def story_a_third_signal_ends_a_program_whose_standard_error_is_full(folder):
    run = os.path.join(folder, "run")

    # The exit code names the first signal. Signals of one number that are not handled yet count once.
    def end(program):
        program.send_signal(signal.SIGINT)
        while troupe("status", run, "--json").json()["live"]["state"] != "stopping":
            pass
        for _ in range(2):
            program.send_signal(signal.SIGTERM)
            while pending(program.pid):
                pass

    def pending(pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            return any(line.startswith(("SigPnd", "ShdPnd")) and int(line.split()[1], 16) for line in status)

    stall = "stall@rank=0,hook=training_step,step=5,ms=3600000"
    check_equal(ended_unread(run, end, "--fault", stall), 130)


def story_under_nohup_sighup_does_not_stop_a_fit(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, before=["nohup"])
    traced.wait_for("training_step", rank=1, step=5)
    traced.signal(signal.SIGHUP)
    check_code(traced.end(), 0)
    check_equal(result_of(run)["status"], "finished")


def story_a_second_signal_reports_what_is_saved(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, "--detect-seconds", "0.1", "--fault", "stall@rank=0,hook=training_step,step=21,ms=3600000")
    traced.wait_for("training_step", rank=0, step=21)
    while "step-00000016" not in checkpoints_of(run):
        os.sched_yield()
    traced.signal(signal.SIGINT)
    traced.wait_for_note("SIGINT: stopping")
    traced.signal(signal.SIGINT)
    ended = check_code(traced.end(), 130)
    check_equal(result_of(run)["status"], "failed", ended)
    # An epoch has 16 steps and ends with a checkpoint. The message that step 21 is done may arrive too late to count.
    check(re.search("saved up to step 16 of 2[01]; go on from there with", ended.err), ended)
    check_in(f"troupe fit --run-dir {run} --resume latest", ended.err)
    check("ended at once after" in ended.out, ended)


def story_a_second_signal_before_the_first_checkpoint_reports_that_nothing_is_saved(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, "--detect-seconds", "0.1", "--fault", "stall@rank=0,hook=training_step,step=3,ms=3600000")
    traced.wait_for("training_step", rank=0, step=3)
    traced.signal(signal.SIGTERM)
    traced.wait_for_note("SIGTERM: stopping")
    traced.signal(signal.SIGTERM)
    ended = check_code(traced.end(), 143)
    check(re.search(f"nothing is saved of [23] steps: {run} has no checkpoint", ended.err), ended)


def story_a_second_sighup_still_stops_the_fit_in_order(folder):
    run = os.path.join(folder, "run")
    place = {"rank": 1, "step": 5}
    traced = Traced(run, *ENDLESS, hold=("training_step", place))
    traced.wait_for("training_step", **place)
    traced.signal(signal.SIGHUP)
    traced.wait_for_note("SIGHUP: stopping")
    traced.signal(signal.SIGHUP)
    traced.release()
    check_code(traced.end(), 129)
    check_stopped(run)


def story_a_stop_in_the_last_step_leaves_the_test_to_a_resume(folder):
    for kind, more in (("saved", []), ("unsaved", ["--no-enable-checkpointing"])):
        run = os.path.join(folder, kind)
        place = {"rank": 0, "step": 31}
        traced = Traced(run, *more, hold=("training_step", place))
        traced.wait_for("training_step", **place)
        traced.signal(signal.SIGTERM)
        traced.wait_for_note("SIGTERM: stopping")
        traced.release()
        ended = check_code(traced.end(), 143)
        result = result_of(run)
        check_equal((result["status"], result["failure"], result["steps"]), ("stopped", None, 32), ended)
        check_in("stopped after 32 steps, which are all of them, but before the end of the test", ended.err)
        names = {name for row in (result["metrics"], *metrics_of(run)) for name in row}
        check(not any(name.startswith("test/") for name in names), names)
    run = os.path.join(folder, "saved")
    ended = check_code(fit(run, "--resume", "latest"), 0)
    check_in("test accuracy", ended.out)
    check_equal(result_of(run)["status"], "finished")
    check_same_metrics(run)


def story_a_stopped_evaluation_prints_no_figures_of_a_part(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--set", "data.evaluation_samples=40000"), 0)
    place = {"rank": 0, "batch": 3}
    for command, hook in (("test", "test_step"), ("validate", "validation_step"), ("predict", "predict_step")):
        for more in ([], ["--json"]):
            traced = Traced(run, *more, command=command, hold=(hook, place))
            traced.wait_for(hook, **place)
            traced.signal(signal.SIGTERM)
            traced.wait_for_note("SIGTERM: stopping")
            traced.release()
            ended = check_code(traced.end(), 143)
            check_in(f"stopped before `{command}` had all of its data", ended.err)
            check("checkpoint" not in ended.err, ended)
            if more:
                check_equal((ended.json()["status"], ended.json()["metrics"]), ("stopped", {}), ended)
            else:
                check_equal(ended.out, "", ended)


def story_a_stop_in_the_last_step_of_a_fit_without_a_test_finishes_it(folder):
    run = os.path.join(folder, "run")
    place = {"rank": 0, "step": 31}
    # The trace of the last validation does not fit into the pipe, so the fit waits.
    traced = Traced(run, "--limit-test-batches", 0, "--set", "data.evaluation_samples=800",
                    hold=("training_step", place))
    traced.wait_for("training_step", **place)
    traced.signal(signal.SIGTERM)
    traced.wait_for_note("SIGTERM: stopping")
    traced.release()
    check_code(traced.end(), 0)
    check_equal(result_of(run)["status"], "finished")


def story_a_stop_of_a_fit_that_saves_nothing_promises_no_checkpoint(folder):
    place = {"rank": 0, "step": 3}
    for kind, more in (("fast", ["--fast-dev-run", 100]), ("unsaved", ["--no-enable-checkpointing"])):
        run = os.path.join(folder, kind)
        traced = Traced(run, *more, hold=("training_step", place))
        traced.wait_for("training_step", **place)
        check_code(troupe("stop", run), 0)
        traced.wait_for_note("asked to stop: stopping at the next step boundary, without a checkpoint")
        traced.release()
        ended = check_code(traced.end(), 75)
        check(re.search("stopped after [0-9]+ steps, without a checkpoint", ended.err), ended)
        check("--resume" not in ended.err, ended)


def story_a_stop_in_the_test_leaves_no_metrics_of_a_part_of_the_data(folder):
    run = os.path.join(folder, "run")
    place = {"rank": 0, "batch": 3}
    traced = Traced(run, "--set", "data.evaluation_samples=8000", "--limit-val-batches", 0,
                    hold=("on_test_batch_start", place))
    traced.wait_for("on_test_batch_start", **place)
    check_code(troupe("stop", run), 0)
    traced.wait_for_note("asked to stop: stopping at the next step boundary, without a checkpoint")
    traced.release()
    ended = check_code(traced.end(), 75)
    check_equal(result_of(run)["status"], "stopped", ended)
    check_in("before the end of the test", ended.err)
    check_same_metrics(run)
    check_equal([row for row in metrics_of(run) if "test/loss" in row], [])


def story_a_signal_while_the_program_exits_does_not_change_the_exit_code(folder):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for i in range(2):
            words = [PROGRAM, "fit", "--run-dir", os.path.join(folder, f"{number}-{i}"), *SMALL, "--max-epochs", "1"]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  env=environment({})) as program:
                for line in program.stdout:
                    if "run folder" in line:
                        break
                while program.poll() is None:
                    program.send_signal(number)
                check_equal(program.returncode, 0, signal.Signals(number).name)


if __name__ == "__main__":
    main(globals())
