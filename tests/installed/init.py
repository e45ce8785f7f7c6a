"""Goal: the project that `troupe init` writes builds against the installed package, trains and passes its test.

Run as: init.py BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER, with the program in TROUPE_PROGRAM
"""

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
            f"-DTROUPE_TORCH={torch}", "-DCMAKE_BUILD_TYPE=Debug")
        run("cmake", "--build", tree)
        # 1024 samples by 2 ranks of 64: 8 steps in each of 20 epochs.
        said = run(os.path.join(tree, "train"), "2")
        assert re.fullmatch(r"steps 160, test accuracy (1|0\.9\d*)\n", said), said
        print(run("ctest", "--test-dir", tree, "--output-on-failure"))


if __name__ == "__main__":
    main()
