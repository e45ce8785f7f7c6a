"""Goal: docs/settings.md, the JSON Schema, the help and `config print` have the same settings; the page has all flags.

The page is generated: TROUPE_PROGRAM=build/bin/troupe python3 tests/end_to_end/settings_page.py --write
"""

import json
import os
import re
import sys
import tempfile

from troupe_program import check, check_code, check_equal, main, troupe

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/settings.md")
BEGIN, END = "<!-- settings_page.py writes from here -->\n", "<!-- to here -->\n"
# Values that only some builds have. The page lists them for all builds.
CONDITIONS = {"cuda": "with CUDA", "nccl": "with NCCL", "mpi": "with MPI"}

COMMANDS = """## Flags of commands

What is no setting. Commands that take all settings, as `troupe fit`, have their flags too. Values that only some builds
have, as `mpi`, are left out.
"""


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
    text += "\n" + COMMANDS + generated_commands(document)
    return text.lstrip("\n") + "\n"


# --- flags of commands ----------------------------------------------------------------------------


def plain(text):
    """Text of a manual page."""
    return re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-").replace("\\e", "\\").strip()


def section(text, title):
    """The items of a section: names, the value's shape and the meaning."""
    found = re.search(rf"^\.SH {title}\n(.*?)(?=^\.SH )", text, re.M | re.S)
    for head, about in re.findall(r"^\.TP\n(.*)\n(.*)", found[1], re.M) if found else []:
        names, shape = re.fullmatch(r"(.*?)(?: \[?(\\fI.*?)\]?)?", head).groups() if title == "OPTIONS" else (head, "")
        yield plain(names), plain(shape or ""), plain(about)


def manual():
    """The words of each command, and its page."""
    with tempfile.TemporaryDirectory() as folder:
        check_code(troupe("manual", "--output", folder, "--force"), 0)
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                text = f.read()
            yield plain(re.search(r"^\.SH SYNOPSIS\n\\fB(.*?)\\fR", text, re.M)[1]), text


def shape_in_words(shape):
    words = [word for word in shape.split("|") if word not in CONDITIONS]
    return ", ".join(code(word) for word in words if word)


def own_items(text, known):
    """A command's arguments and flags, without those of all settings and --help."""
    options = list(section(text, "OPTIONS"))
    takes_settings = any(names == "--set" for names, _, _ in options)
    yield from section(text, "ARGUMENTS")
    for names, shape, about in options:
        several = names.split(", ")
        if "--help" in several or takes_settings and {*several} & {*known, "--config", "--set"}:
            continue
        yield names, shape, about


def generated_commands(document):
    known = [flag for _, _, facts in settings(document["properties"]) for flag in facts.get("x-flags", [])]
    text = ""
    for command, man in manual():
        items = list(own_items(man, known))
        if not items:
            continue
        about = plain(re.search(r"^\.SH NAME\n.*? \\- (.*)", man, re.M)[1])
        others = ". It takes all settings, too." if re.search(r"^\\fB\\-\\-set\\fR", man, re.M) else ""
        text += f"\n### `{command}`\n\n{about}{others}\n\n"
        text += row(["flag or argument", "value", "meaning"]) + "|---|---|---|\n"
        for names, shape, meaning in items:
            spelled = ", ".join(code(name) for name in names.split(", "))
            text += row([spelled, shape_in_words(shape), meaning])
    return text


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


def story_each_command_of_the_help_says_what_its_flags_do(_folder):
    for command, man in manual():
        listed = check_code(troupe(*command.split()[1:], "--help"), 0).out.split("Examples:")[0]
        names = {name for several, _, _ in section(man, "OPTIONS") for name in several.split(", ")}
        helped = {re.sub(r"[{=].*", "", name) for several in re.findall(r"^  (?:-\w,)?(--\S+)", listed, re.M)
                  for name in several.split(",")}
        check_equal(sorted(names), sorted(helped), command)
        for several, _, about in [*section(man, "ARGUMENTS"), *section(man, "OPTIONS")]:
            check(re.search(r"[a-z]{2}", re.sub(r"\(.*?\)", "", about)), f"{command}: nothing is said of {several}")


def story_help_has_the_flags_of_the_schema(_folder):
    help_of_fit = check_code(troupe("fit", "--help"), 0).out.split("Examples:")[0]
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_of_fit)) - {"--help", "--config", "--set"}
    known = {flag for _, _, facts in settings(schema()["properties"]) for flag in facts.get("x-flags", [])}
    check_equal(sorted(listed), sorted(known))


def story_config_print_has_the_keys_of_the_schema(_folder):
    printed = {}
    for data in ("synthetic", "csv", "fashion_mnist"):  # the last one by default
        printed |= check_code(troupe("config", "print", "--json", "--data", data), 0).json()["settings"]
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
    of_synthetic = {name: value for name, value in given.items() if name.endswith("SAMPLES")}
    origins = set()
    for data, variables in (("synthetic", of_synthetic),
                            ("fashion_mnist", {k: v for k, v in given.items() if k not in of_synthetic})):
        ended = check_code(troupe("config", "print", "--json", TROUPE_DATA=data, **{
            k: v for k, v in variables.items() if k != "TROUPE_DATA"}), 0)
        check_equal(ended.err, "")
        origins |= {one["from"] for one in ended.json()["settings"].values()}
    check_equal(origins - {"default", "flag --json"}, {f"variable {name}" for name in given})


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        above, (_, below) = page()
        text = above + BEGIN + generated(schema()) + END + below
        with open(PAGE, "w", encoding="utf-8") as out:
            out.write(text)
    else:
        main(dict(globals()))
