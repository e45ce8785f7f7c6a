"""Goal: the processes that torchrun or srun started are the ranks of one job. Weights equal those of threads, every
outcome is reported once, and no process is left. There is no Slurm here: `step.py` starts processes with the variables
that srun sets in each task of a step."""

import os
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../support"))
# pylint: disable=wrong-import-position
from two_hosts import Refused, make_hosts
from mpi import check_none_left, check_stop_and_resume, digest, failure_of
import troupe_program
from troupe_program import (PROGRAM, SMALL, Traced, check, check_code, check_equal, check_in, environment, main,
                            metrics_of, result_of, troupe)

STEP = os.path.join(os.path.dirname(__file__), "step.py")
JOBS = iter(range(os.getpid() * 100, os.getpid() * 100 + 100))


def fit(run, *arguments, **variables):
    """Without the test after the fit, which starts all processes again."""
    return troupe_program.fit(run, "--limit-test-batches", 0, *arguments, **variables)


def torchrun(ranks, *more):
    return {"before": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", *more,
                       "--nproc-per-node", str(ranks)]}


def srun(ranks, *more):
    return {"before": [sys.executable, STEP, str(ranks), *more], "SLURM_JOB_ID": str(next(JOBS))}


TCP = ["--communicator", "tcp"]
# With gradients of more than 64 KiB: smaller ones do not go through the memory of a host.
LARGE = ["--set", "model.hidden=[256,256]"]
HIER = [*LARGE, "--communicator", "hier"]
LAUNCHERS = {"torchrun": torchrun, "srun": srun}


def story_two_ranks_end_with_the_weights_of_threads_and_print_once(folder):
    threads = os.path.join(folder, "threads")
    check_code(troupe_program.fit(threads), 0)
    for name, launch in LAUNCHERS.items():
        run = os.path.join(folder, name)
        ended = check_code(troupe_program.fit(run, **launch(2)), 0)
        check_equal(digest(run), digest(threads), name)
        check_equal(metrics_of(run), metrics_of(threads), name)
        check_equal(ended.err.count(f"{name} started 2 processes: they are the ranks, over shm\n"), 1, ended)
        check(not re.search("^(error|warning): ", ended.err, re.M), ended)
        check_equal(ended.out.count("run folder"), 1, ended)
        check_none_left(run)
    run = os.path.join(folder, "tcp")
    check_in("the ranks, over tcp\n", check_code(fit(run, *TCP, **srun(2)), 0).err)
    check_equal(digest(run), digest(threads))
    large, run = os.path.join(folder, "large"), os.path.join(folder, "hier")
    check_code(fit(large, *LARGE), 0)
    check_in("the ranks, over hier\n", check_code(fit(run, *HIER, **srun(2)), 0).err)
    check_equal(digest(run), digest(large))


def story_four_ranks_validate_and_test_as_threads_do(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--ranks", 4), 0)
    for command, launch in (("validate", torchrun), ("test", srun)):
        alone = check_code(troupe(command, "--run-dir", run, "--json"), 0)
        check_equal(check_code(troupe(command, "--run-dir", run, "--json", **launch(4)), 0).out, alone.out)


def story_an_exception_is_the_first_cause_and_determines_the_exit_code(folder):
    run = os.path.join(folder, "run")
    ended = fit(run, "--fault", "throw@rank=1,hook=backward,step=9,what=drill", **srun(2))
    check_equal(ended.code, 1, ended)
    check_equal(failure_of(run, "type", "what", "rank", "hook", "step"),
                ["troupe::injected_fault", "drill", 1, "backward", 9], ended)
    check_none_left(run)


def story_a_killed_rank_ends_the_run_and_is_named(folder):
    for launch, over, rank, kind, what in ((srun, TCP, 0, "signal", "SIGKILL"), (torchrun, [], 1, "lost", None)):
        run = os.path.join(folder, str(rank))
        ended = fit(run, "--fault", f"kill@rank={rank},hook=backward,step=3", *over, **launch(2))
        check(ended.code != 0, ended)
        check_equal(failure_of(run, "type", "signal", "rank", "step"), [kind, what, rank, 3], ended)
        check_in(f"rank {rank} failed", ended.err)
        check_none_left(run)


def story_a_call_that_is_refused_is_refused_once_and_no_process_waits(folder):
    run = os.path.join(folder, "run")
    for name, launch in LAUNCHERS.items():
        ended = fit(run, "--ranks", "3", **launch(2))
        check(ended.code != 0, ended)
        check_equal(ended.err.count("error: ranks = 3"), 1, ended)
        check_in(f"{name} started 2 processes", ended.err)
        check(not os.path.exists(run), ended)
        check_none_left(run)
    check_in("over shm; leave it out", fit(run, "--communicator", "inproc", **srun(2)).err)


def story_sigterm_to_the_first_process_stops_at_a_step_boundary_and_resumes(folder):
    check_stop_and_resume(folder, srun(2), "SLURM_PROCID=0")


def story_a_port_that_is_in_use_is_named(folder):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        ended = fit(os.path.join(folder, "run"), MASTER_PORT=str(port), SLURM_NTASKS="2", SLURM_STEP_NUM_TASKS="2",
                    SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODELIST="127.0.0.1")
    check(ended.code != 0, ended)
    check_in(f":{port}", ended.err)
    check_in("set MASTER_PORT", ended.err)


def story_torchrun_whose_starter_is_mpirun_has_the_ranks(folder):
    """All variables of mpirun: launched_test.cpp."""
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, **torchrun(2), OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2"), 0)
    check_in("torchrun started 2 processes: they are the ranks", ended.err)


def story_shells_of_a_launcher_call_the_program_several_times(folder):
    for name, launch in LAUNCHERS.items():
        run = os.path.join(folder, name)
        shells = launch(2)
        test = f'"$0" test --set limit_test_batches=1.0 --run-dir {run}'
        shells["before"] += ["bash", "-c", f'"$0" "$@" && {test} && {{ {test}-not-there; {test}; }}']
        ended = check_code(fit(run, SLURM_JOB_NAME="bash", **shells), 0)
        check_equal(ended.err.count(f"{name} started 2 processes: they are the ranks"), 3, ended)
        check_equal(ended.out.count("test/accuracy"), 2, ended)
        check_equal(ended.err.count("error: "), 1, ended)


def story_srun_with_a_pmi_is_named_with_its_way_around_mpi(folder):
    run, tasks = os.path.join(folder, "run"), srun(2)
    tasks["before"] += ["bash", "-c", 'PMI_RANK=$SLURM_PROCID PMI_SIZE=$SLURM_NTASKS exec "$0" "$@"']
    ended = fit(run, "--communicator", "tcp", SLURM_STEP_ID="0", **tasks)
    if "built without MPI" in troupe("doctor").out:
        check_code(ended, 0)
        return
    check(ended.code != 0, ended)
    check_in("srun's processes are the ranks of one job, over mpi; leave it out, or call the program without srun, "
             "with --placement processes for tcp; or call srun --mpi=none\n", ended.err)


def story_two_steps_of_a_slurm_job_do_not_meet(folder):
    threads = os.path.join(folder, "threads")
    check_code(fit(threads), 0)
    port = str(25000 + os.getpid() % 5000)
    for name, more in (("job", {}), ("port", {"MASTER_PORT": port})):
        first, second = os.path.join(folder, f"{name}-0"), os.path.join(folder, f"{name}-1")
        job = {**srun(2), **more}
        place = {"rank": 1, "step": 5}
        traced = Traced(first, hold=("on_train_batch_start", place), SLURM_STEP_ID="0", **job)
        traced.wait_for("on_train_batch_start", **place)
        ended = fit(second, SLURM_STEP_ID="1", **job)
        if more:  # both want the same port: the second one has none, and all of its processes end
            check_equal(ended.code, 4, ended)
            check_equal(ended.err.count("error: "), 1, ended)
            check_in(f":{port} cannot be served; if the port is in use, set MASTER_PORT", ended.err)
        else:
            check_code(ended, 0)
            check_equal(digest(second), digest(threads))
        traced.release()
        check_code(traced.end(), 0)
        check_equal(digest(first), digest(threads))
        check_none_left(first)
        check_none_left(second)


def tasks_of_step(port, count=2):
    """The variables of the tasks of a step, whose store is at this port; and what its keys begin with."""
    job = str(next(JOBS))
    all_have = {"MASTER_PORT": str(port), "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(count),
                "SLURM_STEP_NUM_TASKS": str(count), "SLURM_STEP_NUM_NODES": "1"}
    tasks = [{**all_have, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(count)]
    return tasks, f"troupe {job} 0 "


def story_a_process_that_cannot_join_says_why(folder):
    from torch.distributed import TCPStore  # pylint: disable=import-outside-toplevel
    port = 25000 + os.getpid() % 5000
    (_, second), prefix = tasks_of_step(port)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with socket.socket() as silent:  # bound, so that no other program takes the port
        silent.bind(("127.0.0.1", 0))
        free_port = silent.getsockname()[1]
        store.set(f"{prefix}join 1", f"{free_port} {'00' * 32} 127.0.0.1")
        ended = fit(os.path.join(folder, "run"), **second)
    check_equal(ended.code, 4, ended)
    check_equal(ended.err, "error: the process that the launcher started as rank 0 cannot be reached: "
                f"127.0.0.1:{free_port}: Connection refused; see what it says\n", ended)


# Has the join info of a call that has ended, and ends when rank 1 has seen that it makes a second call.
OLD_STORE = """
import os, sys
from torch.distributed import TCPStore
port, prefix = int(sys.argv[1]), sys.argv[2]
store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
store.set(prefix + "calls of rank 1", "1")
store.set(prefix + "join 1", "")
print("ready", flush=True)
while store.get(prefix + "calls of rank 1") != b"2":
    os.sched_yield()
"""


def story_a_process_that_meets_the_store_of_an_earlier_call_waits_for_the_next(folder):
    threads, run = os.path.join(folder, "threads"), os.path.join(folder, "run")
    check_code(fit(threads), 0)
    port = 20000 + os.getpid() % 5000
    (first, second), prefix = tasks_of_step(port)
    with subprocess.Popen([sys.executable, "-c", OLD_STORE, str(port), prefix], text=True,
                          stdout=subprocess.PIPE) as old:
        check_equal(old.stdout.readline(), "ready\n")
        with subprocess.Popen([PROGRAM, "fit", "--run-dir", run, *SMALL], env=environment(second),
                              stderr=subprocess.DEVNULL) as rank_1:
            check_equal(old.wait(), 0)
            ended = check_code(fit(run, **first), 0)
            check_equal(rank_1.wait(), 0, ended)
    check_equal(digest(run), digest(threads), ended)


def story_a_spare_process_that_starts_when_the_fit_has_ended_leaves(folder):
    spare = ["--spares", "1", "--max-restarts", "1"]
    run, (*early, late) = os.path.join(folder, "srun"), tasks_of_step(20000 + os.getpid() % 5000, 3)[0]
    command = [PROGRAM, "fit", "--run-dir", run, *SMALL, "--limit-test-batches", "0", *spare]
    tasks = [subprocess.Popen(command, env=environment(task), text=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE) for task in early]
    while not os.path.exists(os.path.join(run, "result.json")) and tasks[0].poll() is None:
        os.sched_yield()
    ended = check_code(troupe(*command[1:], **late), 0)
    check_equal(ended.err, "", ended)
    errors = [task.communicate()[1] for task in tasks]
    check_equal([task.returncode for task in tasks], [0, 0], errors)
    run, tasks = os.path.join(folder, "torchrun"), torchrun(3)
    late = f'if [ $RANK = 2 ]; then until [ -e {run}/result.json ]; do :; done; fi; exec "$0" "$@"'
    tasks["before"] += ["bash", "-c", late]
    ended = check_code(fit(run, *spare, **tasks), 0)
    check("error: " not in ended.err, ended)


def elastic(run, launch, *more, fit=fit):
    return fit(run, "--max-restarts", 4, *more, **launch)


def check_goes_on(run, plain, processes, ended):
    """The job has outlived its losses, with so many processes at the end, and has the weights of threads."""
    result = result_of(run)
    check_equal(result["status"], "finished", ended)
    check_equal(result["generations"][-1]["ranks"], processes, ended)
    check_equal(digest(run), digest(plain), ended)
    check_equal(metrics_of(run), metrics_of(plain), ended)
    check("could not be started" not in ended.err, ended)  # the test after the fit has a process for each start, too
    check_none_left(run)


def kill(rank, step):
    return "--fault", f"kill@rank={rank},hook=backward,step={step}"


def story_the_ranks_of_a_lost_process_go_on_in_the_others(folder):
    plain = os.path.join(folder, "plain")
    check_code(troupe_program.fit(plain, "--ranks", 3), 0)
    for rank, over in ((0, TCP), (1, [])):
        run = os.path.join(folder, f"lost{rank}")
        ended = elastic(run, srun(3), *over, *kill(rank, 3), fit=troupe_program.fit)
        check_goes_on(run, plain, 2, ended)
        check_in("the connection to its process has ended" if rank else "SIGKILL", ended.err)
    run = os.path.join(folder, "two")
    check_goes_on(run, plain, 1, elastic(run, srun(3), *kill(2, 2), *kill(0, 5), fit=troupe_program.fit))


def story_a_stuck_rank_is_given_up_with_its_process(folder):
    plain = os.path.join(folder, "plain")
    check_code(fit(plain, "--ranks", 3), 0)
    run = os.path.join(folder, "stuck")
    ended = elastic(run, srun(3), "--fault", "stall@rank=0,hook=backward,step=3,ms=60000", "--hook-limit-seconds", 10)
    check_goes_on(run, plain, 2, ended)


def story_a_spare_process_takes_the_rank_of_a_lost_one(folder):
    plain = os.path.join(folder, "plain")
    check_code(fit(plain, "--ranks", 2), 0)
    for more in (TCP, ["--ranks", 2]):
        run = os.path.join(folder, more[0])
        ended = elastic(run, srun(3), "--spares", 1, *more, *kill(1, 3))
        check_in("srun started 3 processes: they are the ranks and a spare, over ", ended.err)
        check_goes_on(run, plain, 2, ended)


def story_fewer_processes_than_min_ranks_end_the_job(folder):
    run = os.path.join(folder, "run")
    ended = elastic(run, srun(2), "--min-ranks", 2, *kill(1, 3))
    check_equal(failure_of(run, "type", "rank", "step"), ["lost", 1, 3], ended)
    check_equal(result_of(run)["restarts"], 0, ended)
    check_none_left(run)


def story_a_run_goes_on_with_its_shards_in_fewer_processes(folder):
    plain, run = os.path.join(folder, "plain"), os.path.join(folder, "run")
    check_code(fit(plain, "--ranks", 3), 0)
    check_code(fit(run, "--shards", 3, **srun(2)), 0)
    check_equal(digest(run), digest(plain))


def torchrun_of(host, number):
    """torchrun on one of two hosts, with two processes on each."""
    return host.inside(sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", "2", "--node-rank",
                       str(number), "--nproc-per-node", "2", "--master-addr", "10.77.0.1", "--master-port", "29411")


def check_hier_on_two_hosts(folder, hosts):
    """Ranks 0 and 2 are the first ones of their hosts, which hold the memory of the host."""
    large = os.path.join(folder, "large")
    check_code(fit(large, *LARGE, "--ranks", 4), 0)
    for name, faults, left in (("lost0", kill(0, 3), 3), ("lost2", kill(2, 3), 3)):
        run = os.path.join(folder, name)
        ended = fit(run, "--max-restarts", 2, *HIER, *faults, MASTER_ADDR="10.77.0.1",
                    **srun(4, *(host.pid for host in hosts)))
        check_goes_on(run, large, left, ended)


def story_ranks_on_two_hosts_end_with_the_weights_of_threads(folder):
    threads, run = os.path.join(folder, "threads"), os.path.join(folder, "run")
    try:
        hosts = make_hosts()
    except (Refused, OSError) as why:
        print(f"no two hosts here: {why}")
        return
    try:
        check_code(fit(threads, "--ranks", 4), 0)
        ended = check_code(fit(run, MASTER_ADDR="10.77.0.1", **srun(4, *(host.pid for host in hosts))), 0)
        check_equal(digest(run), digest(threads), ended)
        killed = os.path.join(folder, "killed")
        ended = fit(killed, "--fault", "kill@rank=3,hook=backward,step=3", MASTER_ADDR="10.77.0.1",
                    **srun(4, *(host.pid for host in hosts)))
        check_equal(failure_of(killed, "type", "rank", "step"), ["lost", 3, 3], ended)
        check_none_left(killed)
        lost = os.path.join(folder, "lost")
        ended = fit(lost, "--max-restarts", 2, *kill(2, 3), *kill(3, 3), MASTER_ADDR="10.77.0.1",
                    **srun(4, *(host.pid for host in hosts)))
        check_goes_on(lost, threads, 2, ended)
        check_hier_on_two_hosts(folder, hosts)
        nodes = [torchrun_of(host, number) for number, host in enumerate(hosts)]
        both = os.path.join(folder, "torchrun")
        with subprocess.Popen([*nodes[1], PROGRAM, "fit", "--run-dir", both, *SMALL], env=environment({}),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as second:
            ended = check_code(fit(both, before=nodes[0]), 0)
            check_equal(second.wait(), 0, ended)
        check_equal(digest(both), digest(threads), ended)
    finally:
        for host in hosts:
            host.close()


if __name__ == "__main__":
    if not PROGRAM:
        print("SKIPPED: no program")
        sys.exit(77)
    main(globals())
