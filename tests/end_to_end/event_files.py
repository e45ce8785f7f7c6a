"""Goal: event files for TensorBoard have the scalars, settings and steps of a run. The reader here is its own."""

import glob
import os
import struct

from troupe_program import check, check_code, check_equal, check_in, fit, main, metrics_of


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    with open(path, "rb") as f:
        data = f.read()
    while data:
        size, check_size = struct.unpack("<QI", data[:12])
        check_equal(check_size, masked(data[:8]), "the length's checksum")
        body, (check_body,) = data[12:12 + size], struct.unpack("<I", data[12 + size:16 + size])
        check_equal(check_body, masked(body), "the record's checksum")
        yield body
        data = data[16 + size:]


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data):
    """Field number to values of a message: integers, and bytes of all other types."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


class EventFile:
    """What an event file says: scalars (tag, step, value), texts, plug-in data and the step of a restart."""

    def __init__(self, path):
        self.scalars, self.texts, self.plugins, self.restart = [], {}, {}, None
        events = [fields(record) for record in records(path)]
        check_equal(events[0][3], [b"brain.Event:2"])
        for event in events:
            check(struct.unpack("<d", event[1][0])[0] > 1.7e9, "the time of an event")
            step = event.get(2, [0])[0]
            if 7 in event:
                check_equal(fields(event[7][0])[1], [1], "the session's start")
                self.restart = step
            for value in (fields(v) for s in event.get(5, []) for v in fields(s)[1]):
                self._add(value[1][0].decode(), step, value)

    def _add(self, tag, step, value):
        if 2 in value:
            self.scalars.append((tag, step, struct.unpack("<f", value[2][0])[0]))
            return
        plugin = fields(fields(value[9][0])[1][0])
        if plugin[1] == [b"text"]:
            self.texts[tag] = fields(value[8][0])[8][0].decode()
        else:
            self.plugins[tag] = (plugin[1][0].decode(), fields(plugin[2][0]))


def event_files(run):
    return [EventFile(path) for path in sorted(glob.glob(os.path.join(run, "events.out.tfevents.*")))]


def check_same(scalars, run):
    """The scalars are those of metrics.csv."""
    expected = [(name, row["step"], value) for row in metrics_of(run) for name, value in row.items()
                if name not in ("step", "epoch")]
    check_equal([(t, s) for t, s, _ in scalars], [(t, s) for t, s, _ in expected])
    for (tag, step, value), (_, _, known) in zip(scalars, expected):
        check(abs(value - known) <= 1e-6 * max(1, abs(known)), f"{tag} at {step}: {value}, not {known}")


def hparams_of(file):
    name, data = file.plugins["_hparams_/session_start_info"]
    check_equal(name, "hparams")
    return {fields(entry)[1][0].decode(): fields(fields(entry)[2][0]) for entry in fields(data[3][0])[1]}


def story_scalars_and_settings_of_a_run(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--logger", "csv,tensorboard", "--set", "log_every_n_steps=4"), 0)
    trained, tested = event_files(run)
    check_same(trained.scalars + tested.scalars, run)
    check({t for t, _, _ in tested.scalars} == {"test/loss", "test/accuracy"}, tested.scalars)
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as f:
        config = f.read()
    check_equal(trained.texts["config"], "    " + config.replace("\n", "\n    "))
    known = hparams_of(trained)
    check_equal(known["batch_size"], {2: [struct.pack("<d", 8)]})
    check_equal(known["model.name"], {3: [b"mlp"]})
    check_equal(known["strategy.overlap"], {4: [1]})
    check_equal(fields(trained.plugins["_hparams_/session_end_info"][1][4][0])[1], [1], "success")
    check_equal(trained.restart, None)
    check_equal(tested.texts | tested.plugins, {})


def story_a_resumed_run_forgets_later_steps(folder):
    run = os.path.join(folder, "run")
    options = ["--logger", "csv,tensorboard", "--set", "log_every_n_steps=4"]
    check_code(fit(run, *options, "--limit-test-batches", "0", "--max-steps", "20"), 0)
    check_code(fit(run, *options, "--resume", "latest", "--max-steps", "32", "--limit-test-batches", "1.0"), 0)
    first, second, tested = event_files(run)
    check_equal(second.restart, 21)
    check_same([s for s in first.scalars if s[1] < 21] + second.scalars + tested.scalars, run)


def story_a_failed_run_says_so(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--logger", "tensorboard", "--fault", "throw@rank=1,hook=backward,step=9"), 1)
    check_equal(fields(event_files(run)[0].plugins["_hparams_/session_end_info"][1][4][0])[1], [2], "failure")
    check(not os.path.exists(os.path.join(run, "metrics.csv")), "csv was not asked for")


def story_values_are_written_once_over_restarts(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--logger", "csv,tensorboard", "--set", "log_every_n_steps=1", "--max-restarts", "3",
                   "--fault", "throw@rank=1,hook=backward,step=9"), 0)
    trained, tested = event_files(run)
    check_same(trained.scalars + tested.scalars, run)


def story_an_unknown_logger_is_refused(folder):
    ended = check_code(fit(os.path.join(folder, "run"), "--logger", "csv,tensorbord"), 3)
    check_in('did you mean "tensorboard"', ended.err)


if __name__ == "__main__":
    main(globals())
