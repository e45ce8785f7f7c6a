"""Goal: docs/settings.md, the JSON Schema, the help and `config print` have the same settings.

The page is generated: TROUPE_PROGRAM=build/bin/troupe python3 tests/end_to_end/settings_page.py --write
"""

import json
import os
import re
import sys

from troupe_program import check, check_code, check_equal, main, troupe

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/settings.md")
BEGIN, END = "<!-- settings_page.py writes from here -->\n", "<!-- to here -->\n"
# Values that only some builds have. The page lists them for all builds.
CONDITIONS = {"cuda": "with CUDA", "nccl": "with NCCL", "mpi": "with MPI"}


def schema():
    return json.loads(check_code(troupe("config", "schema"), 0).out)


def settings(properties, table=""):
    """(table, name, facts) of each setting, in the schema's order."""
    for name, facts in properties.items():
        if "properties" in facts:
            yield from settings(facts["properties"], f"{table}.{name}".lstrip("."))
        elif not facts.get("deprecated"):
            yield table, name, facts


def code(text):
    return f"`{text}`"


def words(facts):
    choices = [c for c in facts.get("enum", facts.get("items", {}).get("enum", [])) if isinstance(c, str)]
    choices += facts.get("x-other-builds", [])
    always = [code(c) for c in choices if c not in CONDITIONS]
    return always + [f"{code(c)} ({about})" for c, about in CONDITIONS.items() if c in choices]


def number(value):
    return str(int(value)) if value == int(value) else str(value)


def bounds(facts):
    facts = facts.get("items", facts)
    parts = [f"{sign} {number(facts[name])}" for name, sign in (
        ("minimum", "at least"), ("exclusiveMinimum", "more than"), ("maximum", "at most")) if name in facts]
    return ", ".join(parts)


def values(facts):
    if words(facts):
        several = "any of " if "items" in facts else ""
        return several + ", ".join(words(facts))
    kind = code(facts["x-shape"]) if "x-shape" in facts else facts["x-values"].replace('"auto"', "`auto`")
    return ", ".join(part for part in (kind, bounds(facts)) if part)


def default(facts):
    if "default" not in facts or facts["default"] == []:
        return ""
    value = facts["default"]
    return code(value if isinstance(value, str) else json.dumps(value))


def flags(facts):
    spelled = [code(flag) for flag in facts.get("x-flags", [])]
    if "x-bare" in facts:
        spelled[0] += f" (without a value: {code(facts['x-bare'])})"
    return ", ".join(spelled)


def row(cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def generated(document):
    text, open_table = "", None
    for table, name, facts in settings(document["properties"]):
        if table != open_table:
            open_table = table
            text += f"\n## {f'Table `[{table}]`' if table else 'Keys without a table'}\n\n"
            text += row(["key", "flag", "variable", "default", "values", "meaning"]) + "|" + "---|" * 6 + "\n"
        saved = "" if facts.get("x-saved", True) else " (not in config.toml)"
        text += row([code(name) + saved, flags(facts), code(facts["x-variable"]), default(facts), values(facts),
                     facts["description"]])
    return text.lstrip("\n") + "\n"


def page():
    with open(PAGE, encoding="utf-8") as f:
        head, rest = f.read().split(BEGIN)
    return head, rest.split(END)


def story_the_page_has_what_the_schema_has(_folder):
    _, (written, _) = page()
    fresh = generated(schema())
    check(written == fresh, "docs/settings.md is stale. Write it again: TROUPE_PROGRAM=build/bin/troupe python3 "
          "tests/end_to_end/settings_page.py --write\n" + "".join(
              f"- {a}\n+ {b}\n" for a, b in zip(written.splitlines(), fresh.splitlines()) if a != b))


def story_help_has_the_flags_of_the_schema(_folder):
    help_of_fit = check_code(troupe("fit", "--help"), 0).out.split("Examples:")[0]
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_of_fit)) - {"--help", "--config", "--set"}
    known = {flag for _, _, facts in settings(schema()["properties"]) for flag in facts.get("x-flags", [])}
    check_equal(sorted(listed), sorted(known))


def story_config_print_has_the_keys_of_the_schema(_folder):
    printed = check_code(troupe("config", "print", "--json"), 0).json()["settings"]
    keys = {f"{table}.{name}".lstrip("."): facts for table, name, facts in settings(schema()["properties"])}
    check_equal(sorted(printed), sorted(keys))
    for key, facts in keys.items():
        if key != "json":  # given above
            check_equal(printed[key]["value"], facts.get("default"), key)


def story_each_variable_of_the_schema_is_read(_folder):
    given = {}
    for _, _, facts in settings(schema()["properties"]):
        if isinstance(facts.get("default"), (str, int, float)) and facts.get("x-flag") != "--json":
            value = facts["default"]
            given[facts["x-variable"]] = value if isinstance(value, str) else json.dumps(value)
    ended = check_code(troupe("config", "print", "--json", **given), 0)
    check_equal(ended.err, "")
    origins = {one["from"] for one in ended.json()["settings"].values()} - {"default", "flag --json"}
    check_equal(origins, {f"variable {name}" for name in given})


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        above, (_, below) = page()
        text = above + BEGIN + generated(schema()) + END + below
        with open(PAGE, "w", encoding="utf-8") as out:
            out.write(text)
    else:
        main(dict(globals()))
