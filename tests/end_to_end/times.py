"""Goal: seconds.to_first_step and seconds.total in result.json count from the start of the program itself."""

import os
import subprocess
import time

from troupe_program import PROGRAM, SMALL, check, check_code, check_equal, environment, fit, main, result_of


def story_times_count_from_exec_if_a_shell_executes_the_program(folder):
    run = os.path.join(folder, "run")
    words = ["fit", "--run-dir", run, *SMALL]
    with subprocess.Popen(["sh", "-c", 'read -r go; exec "$0" "$@"', PROGRAM, *words], stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, text=True, env=environment({})) as shell:
        # The shell waits for two whole fits before it calls exec.
        for i in range(2):
            check_code(fit(os.path.join(folder, f"before-{i}")), 0)
        released = time.monotonic()
        shell.stdin.write("go\n")
        shell.stdin.close()
        check_equal(shell.wait(), 0)
    at_most = time.monotonic() - released
    seconds = result_of(run)["seconds"]
    check(0 < seconds["to_first_step"] < seconds["total"] <= at_most, (seconds, at_most))


if __name__ == "__main__":
    main(globals())
