"""Goal: docs/tutorial.md works. Its commands run in their order, in a clone whose build is finished already.

Run as: tutorial.py BUILD_FOLDER SOURCE_FOLDER TORCH_FOLDER
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

# The built-in models train on few samples. The program of the page trains as it says.
SMALL = {"TROUPE_DATA": "synthetic", "TROUPE_MODEL": "mlp", "TROUPE_LIMIT_TRAIN_BATCHES": "30",
         "TROUPE_LIMIT_VAL_BATCHES": "2", "TROUPE_LIMIT_TEST_BATCHES": "2", "TROUPE_BATCH_SIZE": "8"}


def executable(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def clone(here, build, source, torch):
    """A clone with the built program. Its set-up is an empty script, and ninja leaves its build alone."""
    shutil.copytree(os.path.join(source, "apps"), os.path.join(here, "apps"), ignore=lambda at, names: [
        n for n in names if not n.startswith("quickstart.") and at.endswith("apps")])
    executable(os.path.join(here, "apps", "setup.sh"), "exit 0\n")
    ninja = shutil.which("ninja")
    executable(os.path.join(here, "tools", "ninja"),
               f'case "$2" in build | {here}/build) exit 0 ;; *) exec {ninja} "$@" ;; esac\n')
    os.mkdir(os.path.join(here, "build"))
    for name in os.listdir(build):
        if name != "venv":
            os.symlink(os.path.join(build, name), os.path.join(here, "build", name))
    packages = os.path.join(here, "build", "venv", "lib", "python3", "site-packages")
    os.makedirs(packages)
    os.symlink(torch, os.path.join(packages, "torch"))


def written_files(page, source):
    """The project of the page: its blocks are the whole files."""
    folder = os.path.join(source, "tests", "installed", "tutorial")
    for language, name, between in (("cmake", "CMakeLists.txt", ""), ("cpp", "main.cpp", "\n")):
        blocks = re.findall(rf"```{language}\n(.*?)```", page, re.S)
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            assert between.join(blocks) == f.read(), f"the blocks of the page are not tests/installed/tutorial/{name}"
    return folder


def main():
    build, source, torch = sys.argv[1:]
    with open(os.path.join(source, "docs", "tutorial.md"), encoding="utf-8") as f:
        page = f.read()
    commands = re.findall(r"```sh\n(.*?)```", page, re.S)
    assert len(commands) >= 7, commands
    with tempfile.TemporaryDirectory() as folder:
        here = os.path.join(folder, "troupe")
        shutil.copytree(written_files(page, source), os.path.join(folder, "spirals"))
        clone(here, build, source, torch)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
        path = os.path.join(here, "tools") + os.pathsep + clean["PATH"]
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", "".join(commands)], cwd=here, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**clean, **SMALL, "PATH": path})
        said = done.stdout
        assert done.returncode == 0, said
        assert os.path.getsize(os.path.join(here, "quickstart.html")) > 10000, said
        digests = re.findall(r'^runs/\w+/result.json:"weights_digest":"(\w+)"$', said, re.M)
        assert len(digests) == 2 and digests[0] == digests[1], said
        ends = re.findall(r"^steps 640, restarts (\d), test accuracy (\S+)\nweights (\w+), .* (\d \d)$", said, re.M)
        assert [end[0] for end in ends] == ["0", "1"] and ends[0][1:] == ends[1][1:], said
        assert float(ends[0][1]) > 0.95 and ends[0][3] == "0 1", said


if __name__ == "__main__":
    main()
