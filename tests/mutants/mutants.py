"""Applies the mutants of the tables in this folder to copies of product sources, and hunts them.

    mutants.py check                             each text of the tables stands in its source exactly once
    mutants.py hunt TREE SECONDS [NAME...]       hunts all mutants, or those named or found by the finder named, and
                                                 the unchanged code; the last line is "killed N of N"
    mutants.py run TREE TARGET SOURCE [ARG...]   runs the program TARGET, linked with the mutants of SOURCE

Nothing of the working tree changes: copies, objects and programs are in TREE/mutants. A copy has all mutants of its
source, each behind a switch that the program sets (mutant.hpp), so each source is compiled once; one mutant is on at
a time. Sources that the tree compiles together stay together, so a mutated object replaces exactly one member of a
library: the linker takes the object first, and refuses to take both, because the definitions would be doubled.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLES = ("jobs.toml", "tensors.toml")
JOBS = os.cpu_count() or 1


class Wrong(Exception):
    """Ends the program with its text."""


def read_tables():
    mutants = []
    for table in TABLES:
        for one in tomllib.loads((HERE / table).read_text())["mutant"]:
            one["changes"] = [{"text": one["text"], "becomes": one["becomes"]}, *one.get("also", [])]
            if not any("MUTANT" in change["becomes"] for change in one["changes"]):
                raise Wrong(f"{table}: {one['name']} has no MUTANT in what its text becomes")
            mutants.append(one)
    names = [one["name"] for one in mutants]
    for name in names:
        if names.count(name) > 1:
            raise Wrong(f"there are two mutants {name}")
    return mutants


def mutate(file, mutants):
    """The text of a source with all these mutants in it."""
    source = (ROOT / file).read_text()
    edits = []
    for one in mutants:
        for change in one["changes"]:
            found = source.count(change["text"])
            if found != 1:
                raise Wrong(f"{one['name']}: {file} has this text {found} times instead of once: {change['text']}")
            first = source.index(change["text"])
            switch = f'troupe::testing::is_mutant("{one["name"]}")'
            edits.append((first, first + len(change["text"]), change["becomes"].replace("MUTANT", switch), one["name"]))
    edits.sort(reverse=True)
    for later, earlier in zip(edits, edits[1:]):
        if earlier[1] > later[0]:
            raise Wrong(f"{earlier[3]} and {later[3]} change the same text of {file}")
    for first, last, becomes, _ in edits:
        source = source[:first] + becomes + source[last:]
    return f'#include "tests/mutants/mutant.hpp"\n#line 1 "{file}"\n{source}'


class Tree:
    """A build tree: how it compiles and links, and a folder of its own for what is mutated."""

    def __init__(self, path, folder):
        self.path = Path(path).resolve()
        self.own = self.path / "mutants" / folder
        commands = subprocess.run(["ninja", "-C", self.path, "-t", "compdb"], capture_output=True, check=True).stdout
        self.edges = json.loads(commands)

    def unit_of(self, file):
        """The edge that compiles a source of a library, alone or together with others."""
        found = []
        for edge in self.edges:
            if re.search(r"CMakeFiles/troupe_\w+\.dir/.*\.o$", edge.get("output", "")):
                unit = self.path / edge["file"]
                if unit == ROOT / file or (unit.suffix == ".cxx" and f'"{ROOT / file}"' in unit.read_text()):
                    found.append(edge)
        if len(found) != 1:
            raise Wrong(f"{len(found)} objects of libraries in {self.path} have {file} in them, and one should")
        return found[0]

    def objects(self, mutants):
        """The objects with these mutants, by source."""
        units = {}
        for file in sorted({one["file"] for one in mutants}):
            edge = self.unit_of(file)
            units.setdefault(edge["output"], (edge, []))[1].append(file)
        with ThreadPoolExecutor(JOBS) as pool:
            made = list(pool.map(lambda unit: self.compile(*unit, mutants), units.values()))
        return {file: one for one, (_, files) in zip(made, units.values()) for file in files}

    def program(self, target, objects):
        """The program, linked with these objects in front of the libraries."""
        output = f"tests/{target}"
        edge = next((edge for edge in self.edges if edge.get("output") == output), {"command": ""})
        if edge["command"].count(f"-o {output} ") != 1:
            raise Wrong(f"no command of {self.path} links {output}")
        program = self.own / target
        command = edge["command"].replace(f"-o {output} ", f"{shlex.join(sorted(set(objects)))} -o {program} ")
        self.call(command, f"{target} does not link with the mutated objects", shell=True)
        return program

    def compile(self, edge, files, mutants):
        unit = self.path / edge["file"]
        text = unit.read_text()
        for file in files:
            mutated = mutate(file, [one for one in mutants if one["file"] == file])
            if unit == ROOT / file:
                text = mutated
            else:
                text = text.replace(f'"{ROOT / file}"', f'"{self.write(file, mutated)}"')
        source = self.write(unit.relative_to(self.path if unit.suffix == ".cxx" else ROOT), text)
        compiled = f"{source}.o"
        command = shlex.split(edge["command"])
        for option, value in (("-o", compiled), ("-c", str(source)), ("-MT", compiled), ("-MF", f"{compiled}.d")):
            command[command.index(option) + 1] = value
        at = command.index("-c")
        command[at:at] = ["-O1", "-g0", "-w"]
        names = ", ".join(one["name"] for one in mutants if one["file"] in files)
        self.call(command, f"the mutants do not compile, one of {names}")
        return compiled

    def write(self, name, text):
        path = self.own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def call(self, command, otherwise, shell=False):
        done = subprocess.run(command, shell=shell, cwd=self.path, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Wrong(f"{done.stdout}{done.stderr}{otherwise}")


def program_of(finder):
    program = finder.partition(" ")[0]
    if program.endswith("_test"):
        return program
    return "hunter_of_tensors" if finder == "tensors" else "hunter_of_jobs"


def hunt_one(program, finder, mutant, seconds):
    """Prints a line and returns whether the result is as it should be."""
    limit = 2 * seconds + 300
    named, _, cases = finder.partition(" ")
    test = named == program_of(finder)
    arguments = [finder, mutant or "none", str(seconds)]
    if test:
        arguments = ["-o", os.devnull, "--abort", "-w", "NoTests", *filter(None, [cases])]
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=limit, check=False,
                              env=os.environ | {"TROUPE_MUTANT": mutant or ""})
        found, said = done.returncode, (done.stdout + done.stderr).strip()
        if test and found > 0:
            found, said = 1, "a test case fails"
    except subprocess.TimeoutExpired:
        found, said = None, f"no end after {limit} s"
    if found not in (0, 1):
        verdict = "BROKEN"
    elif mutant:
        verdict = "killed" if found else "SURVIVED"
    else:
        verdict = "ALARM" if found else "clean"
    print(f"{verdict:8} {mutant or 'unchanged code':24} | {finder:11} | {said}", flush=True)
    return verdict in ("killed", "clean")


def hunt(tree, seconds, wanted, mutants):
    known = {one["name"] for one in mutants} | {one["found_by"] for one in mutants}
    for name in wanted:
        if name not in known:
            raise Wrong(f"no mutant and no finder has the name {name}")
    chosen = [one for one in mutants if not wanted or one["name"] in wanted or one["found_by"] in wanted]
    tree = Tree(tree, "hunt")
    hunts, programs = [], {}
    for one in chosen:
        programs.setdefault(program_of(one["found_by"]), []).append(one)
    for target in list(programs):
        if not any(edge.get("output") == f"tests/{target}" for edge in tree.edges):
            print(f"left out: {len(programs.pop(target))} mutants that need {target}, which {tree.path} does not have")
    objects = tree.objects([one for of_it in programs.values() for one in of_it])
    count = sum(map(len, programs.values()))
    for target, of_it in programs.items():
        program = tree.program(target, [objects[one["file"]] for one in of_it])
        for finder in sorted({one["found_by"] for one in of_it}):
            hunts.insert(0, (tree.path / "tests" / target, finder, None, seconds))
        hunts += [(program, one["found_by"], one["name"], seconds) for one in of_it]
    with ThreadPoolExecutor(JOBS) as pool:
        good = list(pool.map(lambda one: hunt_one(*one), hunts))
    killed = sum(result for result, (_, _, mutant, _) in zip(good, hunts) if mutant)
    if not all(result for result, (_, _, mutant, _) in zip(good, hunts) if not mutant):
        print("the unchanged code is not clean")
    print(f"killed {killed} of {count}")
    return 0 if all(good) and count else 1


def check(mutants):
    wrong = []
    for file in sorted({one["file"] for one in mutants}):
        of_it = [one for one in mutants if one["file"] == file]
        for some in [of_it[i:i + 1] for i in range(len(of_it))] + [of_it]:  # each alone, then all
            try:
                mutate(file, some)
            except Wrong as one:
                wrong.append(str(one))
    if wrong:
        raise Wrong("\n".join(dict.fromkeys(wrong)))
    print(f"{len(mutants)} mutants: each text stands in its source once")
    return 0


def main():
    command, *rest = sys.argv[1:]
    mutants = read_tables()
    if command == "check":
        return check(mutants)
    if command == "hunt":
        return hunt(rest[0], float(rest[1]), rest[2:], mutants)
    if command == "run":
        tree, target, source, *arguments = rest
        of_it = [one for one in mutants if one["file"] == source]
        if not of_it:
            raise Wrong(f"no mutant is in {source}")
        tree = Tree(tree, target)
        program = tree.program(target, tree.objects(of_it).values())
        return subprocess.run([program, *arguments], check=False).returncode
    raise Wrong(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as wrong:
        sys.exit(f"mutants: {wrong}")
