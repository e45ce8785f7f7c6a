"""Goal: a checkpoint that Troupe wrote can be opened with the tools of its users and has the right content.

safetensors_check.py WRITER          WRITER is checkpoint_sample: `WRITER write FOLDER` writes a sample
                                     checkpoint, `WRITER read FILE` prints a safetensors file's tensors.

Uses the `safetensors` package and numpy where they are installed and reports where they are not. Checks
that need neither always run. Exits with 77 (skipped) if only those could run.
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

SIZES = {"BOOL": 1, "U8": 1, "BF16": 2, "F32": 4, "I64": 8}
MODEL = {  # name: dtype, shape, bytes; as in tests/support/sample_snapshot.hpp and in its order
    "net.mask": ("BOOL", [3], bytes([1, 0, 1])),
    "net.1.weight": ("F32", [1, 3], struct.pack("<3f", 10, -0.0, 1e-30)),
    "net.batches": ("I64", [], struct.pack("<q", 10)),
    "net.hälf": ("BF16", [2], struct.pack("<2H", 0x3F80, 0x7FC0)),
    "net.empty": ("F32", [0, 4], b""),
}


def parse(path):
    """Parses by the description of the format: length, JSON header, bytes without gaps."""
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0 and raw[8:9] == b"{", "header is padded to eight bytes"
    header = json.loads(raw[8 : 8 + length])
    assert all(isinstance(v, str) for v in header.pop("__metadata__", {}).values())
    data, filled, tensors = raw[8 + length :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        size = SIZES[entry["dtype"]]
        assert begin == filled and end - begin == size * math.prod(entry["shape"]), name
        assert begin % size == 0, f"{name} is not aligned"
        filled = end
    assert filled == len(data)
    for name, entry in header.items():
        tensors[name] = (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
    return tensors


def check_manifest(folder):
    text = open(os.path.join(folder, "manifest.json"), encoding="utf-8").read()
    manifest = json.loads(text)
    assert manifest["schema"] == "troupe.checkpoint/1" and manifest["step"] == 10
    assert manifest["loop_state"]["last"]["val/loss"] == 0.25
    for file in manifest["files"]:
        assert os.path.getsize(os.path.join(folder, file["name"])) == file["bytes"]
    listed = {t["name"]: (t["dtype"], t["shape"]) for t in manifest["tensors"]
              if t["file"] == "model.safetensors"}
    assert listed == {name: (dtype, shape) for name, (dtype, shape, _) in MODEL.items()}


def check_numpy(path, np):
    tensors = parse(path)
    weight = np.frombuffer(tensors["net.1.weight"][2], "<f4").reshape(1, 3)
    assert weight.tolist() == [[10, -0.0, np.float32(1e-30)]] and np.signbit(weight[0, 1])


def check_package(path, np):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == set(MODEL)
        assert file.metadata() == {"format": "pt"}
        for name, (dtype, shape, raw) in MODEL.items():
            piece = file.get_slice(name)
            assert (piece.get_dtype(), piece.get_shape()) == (dtype, shape), name
            if dtype != "BF16":  # numpy has no such type
                assert file.get_tensor(name).tobytes() == raw, name
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError:
        torch = None
    if torch:
        loaded = load_file(path)
        for name, (_, shape, raw) in MODEL.items():
            assert list(loaded[name].shape) == shape
            assert loaded[name].reshape(-1).view(torch.uint8).numpy().tobytes() == raw, name
    # The other direction: a file that the package wrote.
    theirs = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, dtype=np.int64),
              "b": np.array([True, False, True])}
    back = path + ".theirs"
    save_file(theirs, back, metadata={"from": "python"})
    return back, theirs


def main(writer):
    lacking = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([writer, "write", folder], check=True)
        path = os.path.join(folder, "model.safetensors")
        assert parse(path) == MODEL and list(parse(path)) == list(MODEL)
        check_manifest(folder)
        try:
            import numpy as np

            check_numpy(path, np)
        except ImportError:
            lacking.append("numpy")
        try:
            import safetensors  # noqa: F401

            back, theirs = check_package(path, np)
            said = subprocess.run([writer, "read", back], check=True, capture_output=True, text=True)
            lines = sorted(said.stdout.split("\n")[:-1])
            assert lines == sorted(f"{k} {list(v.shape)} {v.tobytes().hex()}"
                                   for k, v in theirs.items()), said.stdout
        except ImportError:
            lacking.append("safetensors")
    if lacking:
        print(f"SKIPPED in part: Python has no {' and no '.join(lacking)}; "
              "what needs only the standard library passed")
        return 77
    print("opened by safetensors, numpy and by hand")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
