"""Builds the API reference of the public headers, and refuses symbols without a comment. Needs doxygen.

Run as: api.py [FOLDER]    by default build/api
"""

import glob
import html
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ("messages", "backends", "backends/torch", "actors", "apps/testing", "apps/troupe")  # their include folders
SKIPPED = 77  # for ctest


def readable(text):
    """The same for doxygen 1.9.

    - A code span ends on its line.
    - A full stop in a code span does not end the brief description.
    - <name> outside of code spans is no tag of HTML.
    """
    lines = text.split("\n")
    for i, line in enumerate(lines[:-1]):
        following = re.match(r"(\s*///?<?\s*)(.*)", lines[i + 1])
        if re.search(r"//", line) and line.count("`") % 2 and following and following[2].count("`") % 2:
            start = line.rindex("`")
            lines[i + 1] = f"{following[1]}{line[start:]} {following[2]}"
            lines[i] = line[:start].rstrip()
    for i, line in enumerate(lines):
        if line.lstrip().startswith("//"):
            parts = line.split("`")
            parts[::2] = [re.sub(r"<(\w[\w/.]*)>", r"\\<\1\\>", part) for part in parts[::2]]
            for at in range(1, len(parts) - 1, 2):
                if re.search(r"\.(?!\w)", parts[at]):
                    parts[at] = "<code>" + html.escape(parts[at]).replace(".", "&#46;") + "</code>"
                else:
                    parts[at] = f"`{parts[at]}`"
            lines[i] = "".join(parts) if len(parts) % 2 else line
    return "\n".join(lines)


def is_blank(entry):
    return not any("".join(part.itertext()).strip() for name in ("briefdescription", "detaileddescription")
                   for part in entry.findall(name))


def needs_no_comment(member):
    name = member.findtext("name", "")
    made = re.sub(r"\s", "", member.findtext("argsstring", "") or "").endswith(("=default", "=delete"))
    of_std = name == "what" and "override" in member.findtext("argsstring", "")  # std::exception's
    guide = not member.findtext("type") and "->" in member.findtext("argsstring", "")  # of template arguments
    of_caf = name == "inspect"  # how CAF serializes
    return name.startswith(("~", "@")) or made or of_std or guide or of_caf or member.get("kind") == "friend"


def symbols(folder):
    """{id: (where, name, documented, the ids it overrides)} of all public symbols."""
    found = {}
    for path in glob.glob(os.path.join(folder, "*.xml")):
        for compound in xml.etree.ElementTree.parse(path).getroot().iter("compounddef"):
            kind, name = compound.get("kind"), compound.findtext("compoundname", "")
            if kind not in ("class", "struct", "union", "namespace", "concept") or compound.get("prot") == "private":
                continue
            entries = [compound] if kind != "namespace" else []
            entries += [m for m in compound.iter("memberdef") if m.get("prot") == "public" and not needs_no_comment(m)]
            for entry in entries:
                at = entry.find("location")
                own = entry.findtext("name") if entry is not compound else None
                full = f"{name}::{own}" if own else name
                overrides = [o.get("refid") for o in entry.findall("reimplements")]
                where = f"{at.get('file')}:{at.get('line')}" if at is not None else ""
                found[entry.get("id")] = (where, full, not is_blank(entry), overrides)
    return found


def undocumented(found):
    def documented(key):
        _, _, own, overrides = found.get(key, ("", "", True, []))
        return own or any(documented(other) for other in overrides)

    return sorted((where, name) for key, (where, name, _, _) in found.items() if not documented(key))


def prepare(below):
    """Copies what doxygen reads, in a form that it can read."""
    paths = [os.path.join("docs", "api.md")]
    for layer in HEADERS:
        paths += glob.glob(os.path.join(layer, "include", "**", "*.hpp"), root_dir=ROOT, recursive=True)
    for path in paths:
        os.makedirs(os.path.dirname(os.path.join(below, path)), exist_ok=True)
        with open(os.path.join(ROOT, path), encoding="utf-8") as f, \
                open(os.path.join(below, path), "w", encoding="utf-8") as copy:
            copy.write(readable(f.read()))


def build(out):
    read = os.path.join(out, "read")
    for part in ("read", "html", "xml"):
        shutil.rmtree(os.path.join(out, part), ignore_errors=True)
    prepare(read)
    done = subprocess.run(["doxygen", os.path.join(ROOT, "docs", "Doxyfile")], cwd=read, capture_output=True, text=True,
                          check=False)
    said = done.stderr.replace(read + os.sep, "")
    if done.returncode or said.strip():
        sys.exit(f"{said}doxygen ended with {done.returncode}; its warnings are errors")
    found = symbols(os.path.join(out, "xml"))
    if not found:
        sys.exit("no symbol was found")
    bare = undocumented(found)
    for where, name in bare:
        print(f"{where}: {name} has no comment")
    if bare:
        sys.exit(f"{len(bare)} of {len(found)} public symbols have no comment: say what a reader cannot see")
    print(f"{len(found)} public symbols, all documented: {out}/html/index.html")


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] == ["--help"]:
        sys.exit(__doc__.strip())
    elif not shutil.which("doxygen"):
        print("doxygen is missing: apt-get install doxygen")
        sys.exit(SKIPPED)
    else:
        build(os.path.abspath(sys.argv[1]) if sys.argv[1:] else os.path.join(ROOT, "build", "api"))


if __name__ == "__main__":
    main()
