"""Tests that a page of docs/ names must exist: docs/scenarios.md names one or more for each scenario."""

import re

from prose import Finding

PAGE = "docs/scenarios.md"


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


RULES = [documented_tests]
