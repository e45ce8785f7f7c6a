"""Goal: another project can use the installed package. Installs the build tree and builds a small program against it.

Run as: install.py BUILD_FOLDER SOURCE_FOLDER [TORCH_FOLDER]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_headers(installed, source):
    """Public headers of all layers are there; of others those that a public header reaches, below troupe/detail."""
    there = {os.path.relpath(os.path.join(folder, f), installed)
             for folder, _, files in os.walk(installed) for f in files}
    names = ["messages", "backends", "actors"]
    if "troupe/module.hpp" in there:  # built with LibTorch
        names += ["backends/torch", "apps/troupe"]
    layers = [os.path.join(source, layer, "include") for layer in names]
    public = {os.path.relpath(os.path.join(folder, f), layer)
              for layer in layers for folder, _, files in os.walk(layer) for f in files}
    assert public <= there, public - there
    reached, waiting = set(), [p for p in there if "/detail/" not in p]
    while waiting:
        path = waiting.pop()
        reached.add(path)
        with open(os.path.join(installed, path), encoding="utf-8") as f:
            named = re.findall(r'^#include ["<]([^">]+)[">]', f.read(), re.M)
        waiting += {p for n in named for p in (n, f"troupe/detail/{n}") if p in there} - reached
    assert reached == there, f"installed, and no public header needs it: {sorted(there - reached)}"


def main():
    build, source, *torch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix, tree, user = (os.path.join(folder, name) for name in ("prefix", "tree", "user"))
        run("cmake", "--install", build, "--prefix", prefix, "--component", "development")
        check_headers(os.path.join(prefix, "include"), source)
        package = os.path.join(prefix, "lib", "cmake", "Troupe")
        if not os.path.exists(package):  # some distributions use another lib folder
            package = next(p for p, _, files in os.walk(prefix) if "TroupeConfig.cmake" in files)
        for name in os.listdir(package):  # no file may name the build tree
            with open(os.path.join(package, name), encoding="utf-8") as f:
                text = f.read()
            # A tree in the root folder may have the name of our include folder, so only whole paths count.
            named = re.search(rf"(?<![\w}}])({re.escape(build)}|{re.escape(source)})(?=[/\";\s]|$)", text)
            assert not named, f"{name} names the tree it was built in"
        shutil.copytree(os.path.join(source, "tests/installed/consumer"), user)
        settings = [f"-DCMAKE_PREFIX_PATH={prefix}"]
        if torch:
            settings.append(f"-DTROUPE_TORCH={torch[0]}")
        run("cmake", "-G", "Ninja", "-S", user, "-B", tree, *settings)
        run("cmake", "--build", tree)
        said = run(os.path.join(tree, "consumer"))
        assert said == "sum 10\n", said


if __name__ == "__main__":
    main()
