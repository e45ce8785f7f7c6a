"""Goal: TensorBoard's own reader and Prometheus' own parser read what the program writes for them."""

import os
import sys

from metrics_port import Running
from troupe_program import PROGRAM, check, check_code, check_equal, check_in, fit, main, metrics_of, result_of
from troupe_service import ENDLESS, Service

LOGGED = ["--logger", "csv,tensorboard", "--set", "log_every_n_steps=4"]


def read(folder):
    """What TensorBoard knows of the event files in a folder."""
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events


def last_weights(run):
    checkpoint = os.path.join(run, "checkpoints", "latest", "model.safetensors")
    return {name: values.astype("float64") for name, values in load_file(checkpoint).items()}


def check_histogram(shown, weights, name):
    check_equal(shown.num, weights.size, name)
    check(abs(shown.min - weights.min()) < 1e-9 and abs(shown.max - weights.max()) < 1e-9, shown)
    check(abs(shown.sum - weights.sum()) < 1e-6, shown)
    check(abs(shown.sum_squares - (weights**2).sum()) < 1e-6, shown)
    check_equal(sum(shown.bucket), weights.size, name)
    counts, _ = numpy.histogram(weights, bins=len(shown.bucket), range=(weights.min(), weights.max()))
    # LibTorch and numpy round at the limits of buckets.
    check(abs(counts - numpy.array(shown.bucket)).sum() <= 4, f"{name}: {counts} {shown.bucket}")


def story_tensorboard_reads_scalars_and_settings(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *LOGGED), 0)
    events = read(run)
    for name in ("train/loss", "val/accuracy", "test/accuracy"):
        expected = [(row["step"], row[name]) for row in metrics_of(run) if name in row]
        shown = [(one.step, one.value) for one in events.Scalars(name)]
        check_equal([step for step, _ in shown], [step for step, _ in expected], name)
        for (_, value), (_, known) in zip(shown, expected):
            check(abs(value - known) <= 1e-6 * max(1, abs(known)), f"{name}: {value}, not {known}")
    check_in("batch_size = 8", events.Tensors("config")[0].tensor_proto.string_val[0].decode())
    begun = plugin_data_pb2.HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    check_equal(begun.session_start_info.hparams["batch_size"].number_value, 8)


def story_tensorboard_shows_histograms_of_the_weights(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *LOGGED, "--limit-test-batches", "0"), 0)
    events = read(os.path.join(run, "model"))
    weights = last_weights(run)
    names = {name.replace(".", "/") for name in weights}
    check_equal(set(events.Tags()["histograms"]), names)
    for name, values in weights.items():
        shown = events.Histograms(name.replace(".", "/"))
        check_equal([one.step for one in shown], [0, 16, 32], name)
        check_histogram(shown[-1].histogram_value, values, name)


def story_histograms_of_a_resumed_run_follow_those_before(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *LOGGED, "--limit-test-batches", "0", "--max-steps", "20"), 0)
    check_code(fit(run, *LOGGED, "--limit-test-batches", "0", "--resume", "latest", "--max-steps", "32"), 0)
    events = read(os.path.join(run, "model"))
    for name, values in last_weights(run).items():
        shown = events.Histograms(name.replace(".", "/"))
        check_equal([one.step for one in shown], [0, 16, 20, 32], name)
        check_histogram(shown[-1].histogram_value, values, name)


def story_restarts_write_no_step_twice(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *LOGGED, "--limit-test-batches", "0", "--placement", "processes", "--max-restarts", "3",
                   "--fault", "kill@rank=0,hook=backward,step=18"), 0)
    check_equal(result_of(run)["restarts"], 1)
    events = read(os.path.join(run, "model"))
    for name in last_weights(run):
        check_equal([one.step for one in events.Histograms(name.replace(".", "/"))], [0, 16, 32], name)


def story_tensorboard_shows_the_graph_of_the_loss(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *LOGGED, "--max-steps", "2", "--limit-test-batches", "0"), 0)
    nodes = {node.name: node for node in graph_pb2.GraphDef.FromString(
        read(os.path.join(run, "model")).Graph().SerializeToString()).node}
    parameters = {name.replace(".", "/") for name in last_weights(run)}
    check_equal({name for name, node in nodes.items() if node.op == "Parameter"}, parameters)
    for node in nodes.values():
        check(all(name in nodes for name in node.input), node)
    # A linear layer of 784 to 16, whose activation goes on to the second one.
    first, second = (f"net/{layer}/Addmm" for layer in (1, 3))
    check_in("net/1/bias", nodes[first].input)
    check_in("data", nodes[first].input)
    check_equal([size.size for size in nodes[first].attr["_output_shapes"].list.shape[0].dim], [8, 16])
    activation = next(name for name in nodes[second].input if nodes[name].op == "Relu")
    check_equal(list(nodes[activation].input), [first])
    above = {"loss"}
    while more := {name for node in above for name in nodes[node].input} - above:
        above |= more
    check_equal(above, set(nodes), "nodes that the loss does not depend on")


def story_a_folder_for_the_graph_that_cannot_be_made_is_refused(folder):
    run = os.path.join(folder, "run")
    os.mkdir(run)
    with open(os.path.join(run, "model"), "w", encoding="utf-8"):
        pass
    ended = check_code(fit(run, *LOGGED), 3)
    check_in("model/events.out.tfevents", ended.err)


def story_prometheus_parses_the_metrics(folder):
    running = Running(folder, "--callback", "ranks")
    _, _, text = running.ask()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    check_equal(families["troupe_samples"].type, "counter")
    check_equal(families["troupe_ranks"].samples[0].value, 2)
    metrics = {sample.labels["name"]: sample.value for sample in families["troupe_metric"].samples}
    check_in("train/loss", metrics)
    check(0 <= metrics["rank/1/waiting_share"] <= 1, metrics)
    check_equal(families["troupe_info"].samples[0].labels["run"], os.path.join(folder, 'run"\\'))
    running.release()
    running.signal(15)
    check(running.end().code in (0, 143))


def story_prometheus_parses_the_metrics_of_a_service(folder):
    service = Service(folder)
    names = ("first", "second")
    for name in names:
        service.start(ENDLESS, name)
        service.wait_for_step(name, 5)
    status, text = service.ask("GET", "/metrics")
    check_equal(status, 200)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    check_equal(families["troupe_service_jobs"].samples[0].value, 2)
    check_equal(sorted(sample.labels["job"] for sample in families["troupe_ranks"].samples), sorted(names))
    losses = {sample.labels["job"]: sample.value for sample in families["troupe_metric"].samples
              if sample.labels["name"] == "train/loss"}
    # On a fast machine the loss reaches 0 before the second job has made its steps.
    check(set(losses) == set(names) and all(0 <= value < 10 for value in losses.values()), losses)
    check_equal(service.end(), 0)


if __name__ == "__main__":
    try:
        import numpy
        from prometheus_client.parser import text_string_to_metric_families
        from safetensors.numpy import load_file
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.compat.proto import graph_pb2
        from tensorboard.plugins.hparams import plugin_data_pb2
    except ImportError as error:
        if PROGRAM:
            print(f"SKIPPED: {error}; bash apps/setup.sh --tests installs it")
            sys.exit(77)
    main(globals())
