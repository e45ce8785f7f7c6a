"""Tests that a page of docs/ names must exist: docs/scenarios.md names one or more for each scenario, docs/members.md
for each member."""

import collections
import re

from prose import Finding

PAGE = "docs/scenarios.md"
MEMBERS = "docs/members.md"


def names_of_tests(tree):
    for path, text in tree.text.items():
        if path.startswith("tests/") and path.endswith(".cpp"):
            for literals in re.findall(r'\bTEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
                yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))
        elif path.startswith("tests/") and path.endswith(".py"):
            yield from re.findall(r"^def (story_\w+)", text, re.M)


def documented_tests(tree):
    known = set(names_of_tests(tree))
    for number, line in enumerate(tree.text.get(PAGE, "").splitlines(), 1):
        if not re.match(r"- (?:simulated|real):", line):
            continue
        named = re.findall(r"`([^`]+)`", line)
        if not named:
            yield Finding(PAGE, number, "no test is named in `...`")
        for name in named:
            if name not in known:
                yield Finding(PAGE, number, f"there is no test `{name}`")


def documented_members(tree):
    """Rows name tests by their number in the list at the end of the page."""
    lines = list(enumerate(tree.text.get(MEMBERS, "").splitlines(), 1))
    known = set(names_of_tests(tree)) | {path.rsplit("/", 1)[-1] for path in tree.text if path.startswith("tests/")}
    listed, named = set(), set()
    for number, line in lines:
        if m := re.match(r"- (T\d+): `([^`]+)`$", line):
            listed.add(m[1])
            if m[2] not in known:
                yield Finding(MEMBERS, number, f"there is no test `{m[2]}`")
    for number, line in lines:
        if re.match(r"\| \d+ \|", line):
            *_, state, shown = [cell.strip() for cell in line.split("|")[1:-1]]
            named |= (tests := set(shown.split(", ")) - {""})
            if not tests and not state.startswith("MISSING"):
                yield Finding(MEMBERS, number, "no test shows it")
            for one in sorted(tests - listed):
                yield Finding(MEMBERS, number, f"{one} is not in the list of tests")
    for one in sorted(listed - named):
        yield Finding(MEMBERS, 1, f"no row names {one}")


def counted_members(tree):
    """Rows are numbered from 1. The table of counts has a line for each interface, and one for all."""
    states = ["WORKS", "DIFFERENT", "MISSING"]
    found, stated = collections.defaultdict(collections.Counter), {}
    section, last = "", 0
    for number, line in enumerate(tree.text.get(MEMBERS, "").splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("## "):
            section = line[3:]
        elif section == "Counts" and len(cells) == 5 and cells[1].isdigit():
            stated[cells[0]] = number, [int(cell) for cell in cells[1:]]
        elif re.match(r"\| \d+ \|", line):
            last += 1
            if int(cells[0]) != last:
                yield Finding(MEMBERS, number, f"row {cells[0]} is number {last}")
            state = cells[-2].split(":")[0]
            if state not in states:
                yield Finding(MEMBERS, number, f"the state {state} is none of {', '.join(states)}")
            for counted in section, "all":
                found[counted][state] += 1
    for name in sorted(found.keys() | stated.keys()):
        number, numbers = stated.get(name, (1, None))
        if numbers != (right := [found[name].total(), *(found[name][state] for state in states)]):
            yield Finding(MEMBERS, number, f"the counts of {name} are {numbers}, the page has {right}")


RULES = [documented_tests, documented_members, counted_members]
