"""The rules of this repository that a compiler does not check. Run as: tidy.py ROOT

Each rule takes a Tree and yields Findings; RULES at the end lists them with what they are for.
"""

import os
import re
import subprocess
import sys

import documented_tests
import prose
from prose import Finding

TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE",
             "messages", "actors", "backends", "apps", "tests", "docs"}
LIBRARY = ("messages", "backends", "actors")
LAYERS = {"messages": {"messages"},
          "backends": {"messages", "backends"},
          "actors": {"messages", "backends", "actors"},
          "apps": {"messages", "backends", "actors", "apps"},
          "tests": {"messages", "backends", "actors", "apps", "tests"}}
AS_USERS = ("apps/service/", "apps/examples/")  # programs on the public headers
FILE_LINES, TEST_FILE_LINES = 500, 600
MACHINE_HEADER_LINES = 119
FUNCTION_LINES, TEST_FUNCTION_LINES = 60, 100  # a test case may list what it expects
CODE_WIDTH, SCRIPT_WIDTH = 100, 120
UMBRELLA = re.compile(r"torch/(torch|nn|optim|data|serialize|all)\b")
UMBRELLA_SOURCES = 40

# "rule path": "reason". Findings of the rule in that file are excused; an excuse without a finding is a finding.
EXCUSED = {
    "layers actors/include/troupe/troupe.hpp": "everything in one header: LibTorch's part where it is there",
    "width messages/include/troupe/detail/hook_types.hpp": "a table, one hook per line",
    "process_wide backends/local/fault_drills.cpp": "a drill that ends the process has to end it",
    "process_wide backends/torch/process_modes.cpp": "an option asks for it, and what was set before is restored",
    "process_wide backends/processes/child_client.cpp": "a rank's process leaves signals to its parent",
    "process_wide backends/processes/spawning.cpp": "a child resets handlers before it runs the program",
}


class Tree:
    """The tracked (and not ignored) text files below a root, read once."""

    def __init__(self, root):
        self.root = root
        self.notes = []  # what could not be checked here
        self.text = {}
        for path in sorted(self._paths()):
            try:
                with open(os.path.join(root, path), encoding="utf-8", newline="") as f:
                    self.text[path] = f.read()
            except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
                continue
        self.code = {p: without_comments(t) for p, t in self.text.items() if is_code(p)}
        # "troupe/NAME" as an include says it: the path of a public header.
        self.public = {m[1]: p for p in self.code if (m := re.search(r"/include/(troupe/.*)", p))}

    def _paths(self):
        command = ["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        if os.path.exists(os.path.join(self.root, ".git")):
            listed = subprocess.run(command, capture_output=True, check=False)
            if listed.returncode == 0:
                return listed.stdout.decode().rstrip("\0").split("\0")
        found = []
        for folder, below, files in os.walk(self.root):
            below[:] = [d for d in below if d not in {".git", "__pycache__", "runs"} and not d.startswith("build")]
            found += [os.path.relpath(os.path.join(folder, f), self.root) for f in files]
        return found

    def sources(self, *folders):
        """(path, code without comments) of the C++ files in these top-level folders."""
        return [(p, c) for p, c in self.code.items() if top(p) in folders]

    def lines(self, keep):
        for path, text in self.text.items():
            if keep(path):
                for number, line in enumerate(text.split("\n"), 1):
                    yield path, number, line


def is_code(path):
    return path.endswith((".hpp", ".cpp", ".hpp.in", ".cpp.in"))


def is_script(path):
    return path.endswith((".py", ".sh", ".cmake", "CMakeLists.txt", ".ci/run"))


def top(path):
    return path.split("/", 1)[0]


def without_comments(text):
    """Comments become spaces, line breaks stay; what is quoted stays."""
    token = re.compile(r'R"(?P<d>\w*)\((?:.|\n)*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
                       r"|(?P<c>//[^\n]*|/\*(?:.|\n)*?\*/)")
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m["c"] else m[0], text)


def without_strings(code):
    return re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
                  lambda m: re.sub(r"[^\n]", "_", m[0]), code)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def includes(code):
    """(line, path, quoted) of each include."""
    for m in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', code, re.M):
        yield line_of(code, m.start()), m[2], m[1] == '"'


def calls(tree, folders, pattern, instead, but=()):
    for path, code in tree.sources(*folders):
        if not path.startswith(tuple(but)):
            for m in re.finditer(pattern, without_strings(code)):
                yield Finding(path, line_of(code, m.start()), f"`{m[0].strip()}`: {instead}")


def layers(tree):
    for path, code in tree.sources(*LAYERS):
        for line, what, quoted in includes(code):
            what = tree.public.get(what, what)
            if top(what) not in LAYERS:
                if quoted or what.startswith("troupe/"):
                    yield Finding(path, line, f'"{what}" does not begin at the repository\'s root')
            elif top(what) not in LAYERS[top(path)]:
                yield Finding(path, line, f"{top(path)}/ must not see {what}")
            elif top(path) in LIBRARY and "/include/troupe/" in path and what not in tree.public.values():
                yield Finding(path, line, f"a public header, or what it needs, must not need {what}")
            elif top(path) == "actors" and re.match(r"backends/(?!include/|determinism/).*/", what):
                yield Finding(path, line, f"actors see ports, never an adapter's folder: {what}")
            elif path.startswith(AS_USERS) and not what.startswith((*AS_USERS, "apps/http/", "apps/command_line/")) \
                    and (what not in tree.public.values() or "/troupe/detail/" in what):
                yield Finding(path, line, f"programs as users write them see public headers, not {what}")


def torch_rooms(tree):
    for path, code in tree.sources(*LAYERS):
        if not path.startswith(("backends/torch/", "apps/", "tests/")):
            for line, what, _ in includes(code):
                if what.startswith(("torch/", "ATen/", "c10/", "caffe2/")):
                    yield Finding(path, line, f"{what}: LibTorch stays in backends/torch")


def torch_umbrella(tree):
    """Sources that reach an umbrella header, directly or through headers of ours."""
    direct = {p: [w for _, w, _ in includes(c)] for p, c in tree.code.items()}

    def heavy(path, seen):
        return any(UMBRELLA.match(w) or (w in direct and w not in seen and heavy(w, seen | {w}))
                   for w in (tree.public.get(x, x) for x in direct[path]))

    for_tests = ("tests/", "apps/testing/")
    for what, chosen in (("tests", lambda p: p.startswith(for_tests)),
                         ("library and apps", lambda p: not p.startswith(for_tests))):
        found = [p for p in direct if p.endswith(".cpp") and chosen(p) and heavy(p, {p})
                 and not p.startswith(("tests/installed/", *AS_USERS))]  # programs of users
        for path in found[UMBRELLA_SOURCES:]:
            yield Finding(path, 1, f"LibTorch's umbrella in {len(found)} sources of {what}, at most "
                                   f"{UMBRELLA_SOURCES}: include ATen/core/Tensor.h, or join a source")


def file_length(tree):
    for path, text in tree.text.items():
        bound = TEST_FILE_LINES if top(path) == "tests" else FILE_LINES
        count = len(text.splitlines())
        if (is_code(path) or is_script(path)) and count > bound:
            yield Finding(path, bound, f"{count} lines, at most {bound}")


def machine_header(tree):
    for path, text in tree.text.items():
        count = len(text.splitlines())
        if re.fullmatch(r"actors/\w+_machine\.hpp", path) and count > MACHINE_HEADER_LINES:
            yield Finding(path, MACHINE_HEADER_LINES,
                          f"{count} lines, at most {MACHINE_HEADER_LINES}: take a value out")


def flags_in_a_row(tree):
    for path, code in tree.code.items():
        for m in re.finditer(r"[(,]\s*(?:const )?bool(?: \w+)?(?: = \w+)?,\s*(?:const )?bool\b", code):
            if path.endswith(".hpp"):
                yield Finding(path, line_of(code, m.start()), "two bools in a row: take an enum")


def function_length(tree):
    for path, code in tree.code.items():
        bound = TEST_FUNCTION_LINES if top(path) == "tests" else FUNCTION_LINES
        for first, last in functions(without_strings(code)):
            if last - first + 1 > bound:
                yield Finding(path, first, f"a function of {last - first + 1} lines, at most {bound}")


def functions(code):
    """(first line, last line) of each function body that is not inside another."""
    code = re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*$", lambda m: "\n" * m[0].count("\n"), code)
    kinds, start, text_from, closed = [], 0, 0, None
    for m in re.finditer(r"[{};]", code):
        head = code[text_from:m.start()]
        text_from = m.end()
        # After `c() : member{1}` comes the rest of the members, then the body.
        goes_on = closed is not None and re.match(r"\s*(,|$)", head)
        if closed is not None and not (goes_on and m[0] == "{"):
            yield start, closed
            goes_on = False
        closed = None
        if m[0] == "{":
            inside = "body" in kinds
            kinds.append("body" if not inside and (goes_on or is_function_head(head)) else "scope")
            if kinds[-1] == "body" and not goes_on:
                start = line_of(code, m.start() - len(head.lstrip()))
        elif m[0] == "}" and kinds and kinds.pop() == "body":
            closed = line_of(code, m.start())
    if closed is not None:
        yield start, closed


def is_function_head(head):
    head = " ".join(head.split())
    if head.count("(") != head.count(")") or "(" not in head:
        return False
    flat = head
    while re.search(r"\([^()]*\)", flat):
        flat = re.sub(r"\([^()]*\)", " ", flat)
    return not re.match(r"(template ?<.*> ?)?(namespace|class|struct|union|enum|extern)\b", flat) and not re.search(
        r"(?<!operator)(?<![=!<>])=(?!=)", re.sub(r"operator\W+|<[^<>]*>", "", flat))


def width(tree):
    for path, number, line in tree.lines(lambda p: is_code(p) or is_script(p)):
        bound = CODE_WIDTH if is_code(path) else SCRIPT_WIDTH
        if len(line) > bound and not re.search(r"https?://\S{40}", line):
            yield Finding(path, number, f"{len(line)} columns, at most {bound}")


def blanks(tree):
    for path, text in tree.text.items():
        if text and not text.endswith("\n"):
            yield Finding(path, len(text.splitlines()), "no line end at the end of the file")
    for path, number, line in tree.lines(lambda p: True):
        if line != line.rstrip():
            yield Finding(path, number, "blanks (or a carriage return) at the end of the line")
        elif "\t" in line:
            yield Finding(path, number, "a tab")


def sleeps(tree):
    words = r"\b(?:sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep|sleep)\s*\("
    yield from calls(tree, ("messages", "actors", "tests"), words, "wait for an event, or let virtual time pass")
    for path, number, line in tree.lines(lambda p: top(p) == "tests" and p.endswith((".py", ".sh"))):
        if re.search(r"\btime\.sleep\(|^\s*sleep\s+[\d$.]", line) and not path.startswith("tests/tidy/"):
            yield Finding(path, number, "a sleep: wait for an event")


def prints(tree):
    yield from calls(tree, LIBRARY, r"\bstd::(?:cout|cerr|clog)\b|\b(?:printf|puts|putchar|perror)\s*\(",
                     "the library prints nothing: notify an observer, or write to a stream that was passed in")


def environment(tree):
    yield from calls(tree, LIBRARY, r"\b(?:secure_)?getenv\s*\(|\b(?:set|unset|put)env\s*\(",
                     "main reads the environment and passes what it says")


def process_wide(tree):
    yield from calls(tree, LIBRARY, r"\bstd::(?:exit|quick_exit|set_terminate|signal)\s*\(|\bsigaction\s*\(|"
                     r"\bspdlog::set_\w+|\b(?:set_num_threads|set_num_interop_threads|setDeterministicAlgorithms)\s*\("
                     r"|\b(?:at|torch)::manual_seed\s*\(", "the process belongs to its main")


def devices(tree):
    named = (r"\bk(?:CPU|CUDA|HIP|XLA|XPU|MPS|Lazy|PrivateUse1)\b|\bDeviceType::\w+|\b(?:c10|at|torch)::cuda\b|"
             r"\bis_(?:cpu|cuda|privateuseone|lazy|xla)\s*\(|\.(?:cpu|cuda)\s*\(\s*\)")
    home = "backends/torch/accelerators/"
    yield from calls(tree, (*LIBRARY, "apps"), named, f"devices are named in {home} only: ask the accelerator, "
                     "or use host_memory.hpp", (home,))
    for path, code in tree.sources("backends", "actors", "apps"):
        if not path.startswith(home):
            for m in re.finditer(r'"(?:cpu|cuda|lazy)(?::\d+)?"', code):
                yield Finding(path, line_of(code, m.start()), f"{m[0]}: to_string(accelerator_kind) has the names")


def pure_machines(tree):
    machines = re.compile(
        r"actors/(\w+_machine\w*|deciders|fit_plan|hook_sequences|time_knob)\.|backends/wire/\w+_machine\.")
    for path, code in tree.sources("actors"):
        if machines.match(path):
            for m in re.finditer(r"\brare\s*\(", without_strings(code)):
                yield Finding(path, line_of(code, m.start()), "a machine follows its events: let its shell ask")


def caf_rooms(tree):
    yield from calls(tree, LAYERS, r"\busing\s+namespace\s+caf\b", "name what you use")
    yield from calls(tree, LAYERS, r"\b(?:replies_to|reacts_to|delayed_send|delayed_anon_send|scheduled_send|"
                     r"scheduled_anon_send|CAF_(?:BEGIN|END)_TYPE_ID_BLOCK|CAF_ADD_TYPE_ID|CAF_ADD_ATOM)\b",
                     "differs between CAF 0.17 and 1.x: it goes through messages/interfaces.hpp or actors/spawn.hpp",
                     ("messages/interfaces.hpp", "messages/type_ids.hpp", "actors/spawn."))
    for path, code in tree.sources(*LAYERS):
        for line, what, _ in includes(code):
            if what == "caf/replies_to.hpp" and path != "messages/interfaces.hpp":
                yield Finding(path, line, f"{what}: through messages/interfaces.hpp")
            if what == "caf/all.hpp":
                yield Finding(path, line, f"{what}: include the headers of what is used")


def names(tree):
    bad = r"(?:.*_)?(?:utils?|commons?|helpers?|managers?|misc|impl)"
    for path in tree.text:
        for part in path.split("/"):
            if re.fullmatch(bad, part.split(".")[0].lower()):
                yield Finding(path, 1, f"`{part}` says nothing about what is inside")


def words(tree):
    for path, number, line in tree.lines(lambda p: not p.startswith("tests/tidy/")):
        found = re.search(r"\b(?:TODO|FIXME|XXX|HACK)\b", line)
        if found:
            yield Finding(path, number, f"{found[0]}: do it, or open an issue")
        found = re.search(r"\b(?:workers?|process[ _]groups?)\b", line, re.I)
        if found and is_code(path) and top(path) != "tests":
            yield Finding(path, number, f"`{found[0]}`: one word for one idea, see docs/style.md")


def places(tree):
    """Paths and hosts that only one machine has."""
    for path, number, line in tree.lines(lambda p: not p.startswith("tests/tidy/")):
        found = re.search(r"(?<![\w.$}])/(?:root|home|work)/|"
                          r"\b(?:pypi|debian|pytorch|pythonhosted)\.org\b", line)
        if found:
            yield Finding(path, number, f"`{found[0]}` belongs to a machine, not to the project")


def headers(tree):
    for path, text in tree.text.items():
        if path.endswith(".hpp") and not re.search(r"^#pragma once$", text, re.M):
            yield Finding(path, 1, "no #pragma once")


def named_headers(tree):
    """Comments, texts and pages name public headers that exist."""
    for path, number, line in tree.lines(lambda p: p.endswith((".md", ".hpp", ".cpp"))):
        for named in re.findall(r"(?<![\w/])troupe/[a-z_/]+\.hpp\b", line):
            if named not in tree.public:
                yield Finding(path, number, f"there is no public header {named}")


def anchors(text):
    """The ends of links to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"\]\([^)]*\)", "", prose.FENCE.sub("", text)), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def links(tree):
    """Links of pages lead to files, folders and headings that exist."""
    folders = {os.path.dirname(path) for path in tree.text}
    for path, text in tree.text.items():
        for m in re.finditer(r"\]\(([^)\s]+)\)", prose.markdown_prose(text) if path.endswith(".md") else ""):
            file, _, anchor = m[1].partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            if ":" in file:
                continue
            if target not in tree.text and target not in folders:
                yield Finding(path, line_of(text, m.start()), f"there is no {target}")
            elif anchor and anchor not in anchors(tree.text.get(target, "")):
                yield Finding(path, line_of(text, m.start()), f"{target} has no heading #{anchor}")


def catch_last(tree):
    for path, code in tree.sources("tests"):
        found = list(includes(code))
        for line, what, _ in found:
            if what.startswith("catch2/") and not path.startswith(("tests/support/", "tests/installed/")):
                yield Finding(path, line, 'Catch2 is reached through "tests/support/catch.hpp"')
            if what == "tests/support/catch.hpp" and what != found[-1][1]:
                yield Finding(path, line, "must be the last include: LibTorch has macros of the same names")


def top_level(tree):
    for name in sorted({top(p) for p in tree.text}):
        if name not in TOP_LEVEL and not name.startswith("."):
            yield Finding(name, 1, f"the top level is fixed: {', '.join(sorted(TOP_LEVEL))}, hidden files")


def dead_files(tree):
    built = set()
    for path, text in tree.text.items():
        if os.path.basename(path) == "CMakeLists.txt":
            for named in re.findall(r"[\w./${}]+\.cpp\b", text):
                named = named.removeprefix("${CMAKE_CURRENT_SOURCE_DIR}/")
                folder = "" if named.startswith("${PROJECT_SOURCE_DIR}/") else os.path.dirname(path)
                built.add(os.path.normpath(os.path.join(folder, named.removeprefix("${PROJECT_SOURCE_DIR}/"))))
    for path in tree.code:
        if path.endswith(".cpp") and path not in built:
            yield Finding(path, 1, "no CMakeLists.txt builds it")


RULES = [layers, torch_rooms, torch_umbrella, file_length, machine_header, flags_in_a_row,
         function_length, width, blanks,
         sleeps, prints, environment, process_wide, devices, pure_machines, caf_rooms, names, words, places,
         headers, named_headers, links, catch_last, top_level, dead_files, *documented_tests.RULES, *prose.RULES]


def check(root, excused=None):
    """All findings of all rules, as (rule name, finding)."""
    return check_tree(Tree(root), excused)


def check_tree(tree, excused=None):
    excused = EXCUSED if excused is None else excused
    found = [(rule.__name__, f) for rule in RULES for f in rule(tree)]
    used = {f"{rule} {f.path}" for rule, f in found}
    unused = [("excuses", Finding(key.split()[1], 1, f"excused from {key.split()[0]} without need"))
              for key in excused if key not in used]
    return [(rule, f) for rule, f in found if f"{rule} {f.path}" not in excused] + unused


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__.strip())
    tree = Tree(sys.argv[1])
    found = check_tree(tree)
    for note in tree.notes:
        print(note)
    for rule, f in found:
        print(f"{f.path}:{f.line}: {f.text} [{rule}]")
    print(f"{len(RULES)} rules, {len(found)} findings")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
