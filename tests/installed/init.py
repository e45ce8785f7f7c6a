"""Goal: the project that `troupe init` writes builds against the installed package, trains and passes its test.

Run as: init.py BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER, with the program in TROUPE_PROGRAM
"""

import json
import os
import re
import subprocess
import sys
import tempfile

from install import run


def refused(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done
    return done.stderr


def main():
    build, _, torch = sys.argv[1:]
    troupe = os.environ["TROUPE_PROGRAM"]
    with tempfile.TemporaryDirectory() as folder:
        prefix, tree, project = (os.path.join(folder, name) for name in ("prefix", "tree", "my model 2"))
        assert run(troupe, "init", project) == project + "\n"
        assert project in refused(troupe, "init", project)
        with open(os.path.join(project, "CMakeLists.txt"), encoding="utf-8") as f:
            assert "project(my_model_2 " in f.read()
        run("cmake", "--install", build, "--prefix", prefix, "--component", "development")
        run("cmake", "-G", "Ninja", "-S", project, "-B", tree, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DTROUPE_TORCH={torch}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-Og")
        run("cmake", "--build", tree)
        # 1024 samples by 2 ranks of 64: 8 steps in each of 20 epochs.
        train, trained = os.path.join(tree, "train"), os.path.join(folder, "trained")
        said = run(train, "fit", "--run-dir", trained, "--max-epochs", "20", "--progress", "never")
        ending = rf"test accuracy (1|0\.9).*, run folder {re.escape(trained)}\n$"
        assert re.search(rf" 160 steps,(.|\n)*\n{ending}", said), said
        tested = json.loads(run(train, "test", "--run-dir", trained, "--json"))
        assert f"test accuracy {tested['metrics']['test/accuracy']:.4f}" in said, (tested, said)
        # Fields of hparams are settings; a saved module is made of them again.
        run(train, "fit", "--run-dir", trained + "_16", "--set", "model.hidden=16", "--set", "model.rate=0.02",
            "--set", "data.samples=256", "--max-epochs", "1", "--placement", "processes")
        kept = json.loads(run(train, "checkpoint", "inspect", trained + "_16", "--json"))
        assert {t["name"]: t["shape"] for t in kept["tensors"]}["net.0.weight"] == [16, 2], kept
        print(run("ctest", "--test-dir", tree, "--output-on-failure"))


if __name__ == "__main__":
    main()
