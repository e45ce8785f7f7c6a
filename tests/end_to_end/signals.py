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

from troupe_program import (PROGRAM, SMALL, Traced, check, check_code, check_equal, check_in, checkpoints_of,
                            environment, main, result_of)

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


if __name__ == "__main__":
    main(globals())
