"""Starts a command as srun does: `step.py N [HOST ...] -- COMMAND`. N processes with the variables of the tasks of a
Slurm step; each HOST is a process whose network namespace gets a block of the tasks. As with srun, a task that fails
ends no other one, and the exit code is the highest one."""

import os
import subprocess
import sys


def main():
    count, *rest = sys.argv[1:]
    at = next(i for i, word in enumerate(rest) if not word.isdigit())
    hosts, command = rest[:at], rest[at:]
    tasks, here = int(count), int(count) // max(1, len(hosts))
    running = []
    for task in range(tasks):
        node = task // here
        variables = {"SLURM_NTASKS": count, "SLURM_STEP_NUM_TASKS": count, "SLURM_PROCID": str(task),
                     "SLURM_LOCALID": str(task % here), "SLURM_NODEID": str(node),
                     "SLURM_STEP_NUM_NODES": str(max(1, len(hosts))), "SLURM_STEP_NODELIST": "127.0.0.1",
                     "SLURM_NODELIST": "first-of-the-job.invalid,127.0.0.1"}
        inside = ["nsenter", "--target", hosts[node], "--net"] if hosts else []
        running.append(subprocess.Popen([*inside, *command], env={**variables, **os.environ, **variables}))
    codes = [one.wait() for one in running]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))


main()
