"""Each public header compiles alone, and needs nothing but public headers: no CAF, no internal header, and LibTorch
only where it is a header for modules. docs/README.md names them all.

Run as: public.py COMPILER SOURCE_FOLDER [LIBTORCH_FOLDER]

A header below LAYER/include/troupe is compiled twice in one source without anything before it. What it reached is read
from the compiler's list of dependencies: CAF may lie in the system's folder, so no include path keeps it out.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

LAYERS = ["messages", "backends", "actors"]
TORCH = "backends/torch"
PROGRAMS = "apps/troupe"  # without LibTorch's headers
CAF = re.compile(r"/caf/")
LIBTORCH = re.compile(r"/(torch|ATen|c10|caffe2)/")


def public_headers(source, layer):
    root = os.path.join(source, layer, "include")
    return sorted(os.path.relpath(os.path.join(folder, f), root)
                  for folder, _, files in os.walk(root) for f in files
                  if f.endswith(".hpp") and os.path.basename(folder) != "detail")


def patience(compiler):
    """For GCC: to collect garbage late, which saves a fifth of the time with LibTorch's headers."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return ["--param=ggc-min-heapsize=1500000"] if "Free Software Foundation" in version else []


def complaints(compiler, source, header, layers, system):
    """What is wrong with the header, one text each."""
    paths = [os.path.join(source, layer, "include") for layer in layers]
    with tempfile.TemporaryDirectory() as folder:
        unit, made = os.path.join(folder, "alone.cpp"), os.path.join(folder, "alone.d")
        with open(unit, "w", encoding="utf-8") as f:
            f.write(f'#include "{header}"\n#include "{header}"\n')
        done = subprocess.run(
            [*compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wno-missing-field-initializers", "-Werror",
             "-fsyntax-only", "-MD", "-MF", made, *(f"-I{p}" for p in paths), *(f"-isystem{p}" for p in system), unit],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [f"{header} does not compile alone:\n{done.stderr[:2000]}"]
        with open(made, encoding="utf-8") as f:
            reached = f.read().replace("\\\n", " ").split()[2:]
    wrong = [r for r in reached if CAF.search(r)]
    if not system:
        wrong += [r for r in reached if LIBTORCH.search(r) and "/include/troupe/" not in r]
    # The virtual environment with LibTorch lies below the source.
    ours = [r for r in reached if r.startswith(source + "/") and not r.startswith(tuple(system))]
    wrong += [r for r in ours if "/include/troupe/" not in r]
    return [f"{header} reaches {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else "")] if wrong else []


def page_complaints(source):
    """docs/README.md lists the public headers by task: all of them, and no others."""
    with open(os.path.join(source, "docs/README.md"), encoding="utf-8") as f:
        table = f.read().split("## Public headers")[1]
    named = set(re.findall(r"`([a-z_/]+)`", re.sub(r"^\| [^|]*", "", table, flags=re.M)))
    layers = (*LAYERS, TORCH, PROGRAMS, "apps/testing")
    there = {header.removeprefix("troupe/").removesuffix(".hpp")
             for layer in layers for header in public_headers(source, layer)} - {"troupe"}
    return [f"docs/README.md and the public headers differ: {sorted(named ^ there)}"] if named != there else []


def trainer_complaints(compiler, source):
    """trainer.fit<Module> without the header of modules: the compiler names that header."""
    text = '#include <troupe/trainer.hpp>\nstruct m {};\nvoid f(troupe::trainer& t) { t.fit<m>(1); }\n'
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-",
         *(f"-I{os.path.join(source, layer, 'include')}" for layer in LAYERS)],
        input=text, capture_output=True, text=True, check=False)
    named = done.returncode != 0 and "include <troupe/module.hpp>" in done.stderr
    return [] if named else [f"fit<Module> without <troupe/module.hpp> does not name it:\n{done.stderr[:2000]}"]


def main():
    compiler, source, *torch = sys.argv[1:]
    source = os.path.realpath(source)
    asked = [(header, LAYERS, []) for layer in LAYERS for header in public_headers(source, layer)]
    asked += [(header, [*LAYERS, TORCH, PROGRAMS], []) for header in public_headers(source, PROGRAMS)]
    if torch:
        system = [os.path.join(torch[0], "include"), os.path.join(torch[0], "include/torch/csrc/api/include")]
        asked = [(header, [*LAYERS, TORCH], system) for header in public_headers(source, TORCH)]
        asked.append(("troupe/troupe.hpp", [*LAYERS, TORCH], system))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() if not torch else 2) as at_once:
        found = at_once.map(lambda one: complaints([compiler, *patience(compiler)], source, *one), asked)
    found = [text for texts in found for text in texts]
    if not torch:
        found += trainer_complaints(compiler, source) + page_complaints(source)
    print(f"{len(asked)} public headers, {len(found)} complaints", *found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
