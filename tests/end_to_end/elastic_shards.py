"""Goal: the weights of a job depend on its shards, and on nothing that happens to its processes."""

import os
import signal

from elastic import PLACED, SHORT, metrics_text, undisturbed
from processes import check_none_left, rank_processes
from troupe_program import Traced, check, check_code, check_equal, check_in, fit, main, result_of, troupe

KILL = "kill@rank={},hook={},step={}"


def end(folder, name, *arguments, code=0):
    run = os.path.join(folder, name)
    ended = fit(run, *SHORT, *arguments)
    check_code(ended, code)
    return run, ended


def check_same(run, plain, about):
    """The run shows the same weights and metrics as `plain`."""
    result, expected = result_of(run), result_of(plain)
    for key in ("weights_digest", "status", "epochs", "steps", "samples", "metrics"):
        check_equal(result[key], expected[key], (key, about))
    check_equal(metrics_text(run), metrics_text(plain), about)
    return result


def story_the_same_shards_in_fewer_processes_or_threads_end_in_the_same_weights(folder):
    plain = undisturbed()
    for ranks, more in ((1, []), (2, PLACED), (2, [*PLACED, "--communicator", "hier"])):
        run, ended = end(folder, f"{ranks}-{len(more)}", "--ranks", ranks, "--shards", 3, *more)
        result = check_same(run, plain, ended)
        check_equal(result["ranks"], ranks)


def story_with_shrink_a_job_goes_on_in_the_processes_that_are_left(folder):
    plain = undisturbed()
    for rank, step in ((0, 3), (2, 10)):
        run, ended = end(folder, f"one{rank}", *PLACED, "--max-restarts", 3, "--on-loss", "shrink",
                         "--fault", KILL.format(rank, "training_step", step))
        result = check_same(run, plain, ended)
        check_equal([g["ranks"] for g in result["generations"]], [3, 2], ended)
    run, ended = end(folder, "two", *PLACED, "--max-restarts", 3, "--on-loss", "shrink",
                     "--fault", KILL.format(0, "training_step", 3), "--fault", KILL.format(2, "optimizer_step", 9))
    result = check_same(run, plain, ended)
    check(result["generations"][-1]["ranks"] in (1, 2), result)
    run, ended = end(folder, "least", *PLACED, "--max-restarts", 3, "--on-loss", "shrink", "--min-ranks", 3,
                     "--fault", KILL.format(1, "pre_backward", 4))
    result = check_same(run, plain, ended)
    check_equal([g["ranks"] for g in result["generations"]], [3, 3], ended)


def story_a_process_with_two_shards_is_killed_and_both_are_replaced(folder):
    plain = undisturbed()
    for on_loss, left in (("replace", 2), ("shrink", 1)):
        run, ended = end(folder, on_loss, "--ranks", 2, "--shards", 3, *PLACED, "--max-restarts", 2,
                         "--on-loss", on_loss, "--fault", KILL.format(1, "training_step", 5))
        result = check_same(run, plain, ended)
        check_equal([g["ranks"] for g in result["generations"]], [2, left], ended)


def story_a_spare_takes_the_place_of_a_killed_process(folder):
    plain = undisturbed()
    run, ended = end(folder, "spare", *PLACED, "--max-restarts", 3, "--spares", 1,
                     "--fault", KILL.format(1, "training_step", 5), "--fault", KILL.format(2, "on_train_epoch_end", 21))
    result = check_same(run, plain, ended)
    check_equal({g["ranks"] for g in result["generations"]}, {3}, ended)
    check_none_left(ended)


def story_a_resume_with_fewer_processes_keeps_the_shards(folder):
    plain = undisturbed()
    run, _ = end(folder, "resumed", "--max-steps", 7)
    for ranks, placed, steps in ((1, [], 9), (2, PLACED, 14), (3, [], 22)):
        ended = fit(run, *SHORT, "--ranks", ranks, *placed, "--max-steps", steps, "--resume", "latest")
        check_code(ended, 0)
    result, expected = result_of(run), result_of(plain)
    for key in ("weights_digest", "steps", "samples"):
        check_equal(result[key], expected[key], (key, ended))
    check_equal(metrics_text(run), metrics_text(plain), ended)


def story_impossible_shards_are_refused_with_the_fix(folder):
    for words, about in ((["--shards", 2], "raise elastic.shards"), (["--min-ranks", 4], "elastic.min_ranks is 4"),
                         (["--shards", 4, "--communicator", "mpi"], 'communicator "mpi"'),
                         (["--spares", 1], "the ranks of this job are threads"),
                         ([*PLACED, "--spares", 1], "raise elastic.max_restarts"),
                         (["--spares", 1, "--communicator", "mpi"], "are processes of MPI")):
        _, ended = end(folder, "refused", *words, code=3)
        check_in(about, ended.err)


LONG = ["--max-epochs", 30]  # 330 steps


def changing(folder, *arguments):
    """A long run in processes that is held in step 9, and the same run without a change."""
    plain = undisturbed(*LONG)
    run = os.path.join(folder, "changing")
    traced = Traced(run, *SHORT, *LONG, *PLACED, "--max-restarts", 1, *arguments,
                    hold=("training_step", {"rank": 0, "step": 9}))
    traced.wait_for("training_step", rank=0, step=9)
    return plain, run, traced


def wait_for_ranks(run, ranks):
    """Until the run has so many processes."""
    live = {"ranks": 0}
    while live and live["ranks"] != ranks:
        live = troupe("status", run, "--json").json()["live"]
    check(live, f"the run ended before its ranks were {ranks}")


def check_changed(traced, run, plain, why, ranks):
    """Each change was one of `why`; no step was lost, and no restart was used."""
    ended = check_code(traced.end(), 0)
    result = check_same(run, plain, ended)
    generations = result["generations"]
    check_equal([g["ended_by"] for g in generations], [*why, "finished"], ended)
    check_equal([g["ranks"] for g in generations], ranks, ended)
    check_equal(({g["steps_redone"] for g in generations}, result["restarts"]), ({0}, 0), ended)
    check_none_left(ended)


def story_a_process_that_gets_sigterm_hands_its_shard_over_and_ends(folder):
    plain, run, traced = changing(folder)
    leaving = rank_processes(traced.pid())[1]
    os.kill(leaving, signal.SIGTERM)
    traced.release()
    check_changed(traced, run, plain, ["left"], [3, 3])


def story_a_process_leaves_with_shrink_and_the_others_take_its_shard(folder):
    plain, run, traced = changing(folder, "--on-loss", "shrink")
    os.kill(rank_processes(traced.pid())[0], signal.SIGTERM)
    traced.release()
    check_changed(traced, run, plain, ["left"], [3, 2])


def story_scale_moves_the_shards_into_fewer_and_into_more_processes(folder):
    for by in ("shm", "hier"):
        place = os.path.join(folder, by)
        os.mkdir(place)
        plain, run, traced = changing(place, "--communicator", by)
        check_code(troupe("scale", run, "--ranks", 1), 0)
        # Rank 1 has moved and trains: the second generation is active.
        traced.release(("on_train_start", {"rank": 1}), ("training_step", {"rank": 1}))
        wait_for_ranks(run, 1)
        check_code(troupe("scale", run, "--ranks", 3), 0)
        traced.release()
        check_changed(traced, run, plain, ["scaled", "scaled"], [3, 1, 3])


if __name__ == "__main__":
    main(globals())
