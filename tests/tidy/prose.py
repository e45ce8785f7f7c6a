"""Rules about language: words, sentences and lines of Markdown, subjects of commits.

tidy.py runs them. `prose.py ROOT` prints how many replaced words and names each folder holds, as words.py has it.
"""

import collections
import re
import subprocess
import sys

import words as table

Finding = collections.namedtuple("Finding", "path line text")

SENTENCE_WORDS, MARKDOWN_WIDTH, SUBJECT_WIDTH = 40, 160, 60
BASE = "5a1df941b1bda0776151bc52e000112b7600b6b6"  # subjects of this commit and of its ancestors are excused
SUBJECT = re.compile(r"[a-z.][\w./+-]*(?:,? [\w./+-]+){0,3}: \S")
GENERATED = re.compile(r"<!-- \S+ writes from here -->.*?<!-- to here -->", re.S)
FENCE = re.compile(r"^[ ]{0,3}```.*?^[ ]{0,3}```[ ]*$", re.M | re.S)
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
TEST_NAME = re.compile(r"TEST_CASE\(\s*\"(%s)\b" % "|".join(table.UNNAMED_SUBJECTS))
CODE_LINE = re.compile(r"^(?:text|becomes) = .*$", re.M)  # of a table of mutants
TOKEN = re.compile(r'R"(?P<d>\w*)\((?:.|\n)*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
                   r"|//[^\n]*|/\*(?:.|\n)*?\*/")  # a string or a comment
QUOTED = re.compile(r'"[^"\n]*"')

ITS_OWN = {"tests/tidy/words.py", "tests/tidy/tidy_self_test.py"}  # they list replaced words
WORD = re.compile(r"\b(?:%s)\b" % "|".join(pattern for pattern, _ in table.WORDS), re.I)
NAMES = {old.replace(" ", "_"): new for old, new in table.NAMES.items()}
NAME = re.compile(r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])" % "|".join(NAMES))

PART = re.compile(r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])" % "|".join(pattern for pattern, _ in table.PARTS))


def blanked(text):
    """As many lines as before, and nothing on them."""
    return re.sub(r"[^\n]", " ", text)


def markdown_prose(text):
    """Markdown without code blocks and generated tables; each code span becomes one word."""
    for skipped in (GENERATED, FENCE):
        text = skipped.sub(lambda m: blanked(m[0]), text)
    return CODE_SPAN.sub(lambda m: re.sub(r"[^\n]", "_", m[0]), text)


def comments_and_strings(text):
    out, last = [], 0
    for m in TOKEN.finditer(text):
        out += [blanked(text[last:m.start()]), m[0]]
        last = m.end()
    return CODE_SPAN.sub(lambda m: blanked(m[0]), "".join(out))


def prose_of(path, text):
    if path.endswith(".md"):
        return QUOTED.sub(lambda m: blanked(m[0]), markdown_prose(text))
    if path.endswith((".hpp", ".cpp", ".hpp.in", ".cpp.in")):
        return comments_and_strings(text)
    if path.startswith("tests/mutants/"):
        return CODE_LINE.sub(lambda m: blanked(m[0]), text)
    return text


def names_of(path, text):
    """C++ without comments and strings; nothing of another file."""
    if not path.endswith((".hpp", ".cpp", ".hpp.in", ".cpp.in")):
        return ""
    return TOKEN.sub(lambda m: blanked(m[0]), text)


def folder_of(path):
    """The top-level folder, or the file's name in the root."""
    return path.split("/", 1)[0]


def replaced(tree):
    """(folder, kind, path, line, text) of each replaced word or test's subject (kind 0) and name (kind 1)."""
    for path, text in tree.text.items():
        if path in ITS_OWN:
            continue
        for m in WORD.finditer(prose_of(path, text)):
            instead = next(new for pattern, new in table.WORDS if re.fullmatch(pattern, m[0], re.I))
            yield folder_of(path), 0, path, text.count("\n", 0, m.start()) + 1, f"`{m[0]}`: write {instead}"
        for m in TEST_NAME.finditer(text):
            yield folder_of(path), 0, path, text.count("\n", 0, m.end()) + 1, f"`{m[1]} ...`: name the subject"
        for m in PART.finditer(names_of(path, text)):
            instead = next(new for pattern, new in table.PARTS if re.fullmatch(pattern, m[0]))
            yield folder_of(path), 1, path, text.count("\n", 0, m.start()) + 1, f"a name with `{m[0]}`: write {instead}"
        for m in NAME.finditer(text):
            yield folder_of(path), 1, path, text.count("\n", 0, m.start()) + 1, f"`{m[0]}` is now {NAMES[m[0]]}"


def replaced_words(tree):
    found = collections.defaultdict(list)
    for folder, kind, path, line, text in replaced(tree):
        found[folder, kind].append(Finding(path, line, text))
    for (folder, kind), uses in sorted(found.items()):
        bound = table.LEFT.get(folder, table.NONE_LEFT)[kind]
        if len(uses) > bound and not bound:
            yield from uses
        elif len(uses) > bound:
            what, last = ("words in prose", "names in code")[kind], uses[-1]
            yield Finding(folder, 1, f"{len(uses)} replaced {what}, at most {bound} (tests/tidy/words.py). "
                                     f"The last one: {last.path}:{last.line}: {last.text}")


def blocks(text):
    """(first line, text) of each paragraph, heading, list item and table cell."""
    open_at, lines = 0, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        starts = re.match(r"\s*(?:[-*+]|\d+[.)]|#+|>|\|)\s", line) or line.startswith("|")
        if lines and (starts or not line.strip()):
            yield open_at, " ".join(lines)
            lines = []
        if line.lstrip().startswith("|"):
            yield from ((number, cell) for cell in line.split("|"))
        elif line.strip():
            open_at = open_at if lines else number
            lines.append(re.sub(r"^\s*(?:[-*+]|\d+[.)]|#+|>)\s+", "", line))


def sentences(tree):
    for path, text in tree.text.items():
        if path.endswith(".md"):
            for line, block in blocks(markdown_prose(text)):
                flat = re.sub(r"\]\([^)]*\)", "]", block)
                for sentence in re.split(r"(?<=[.!?])[)*]*\s+(?=[^a-z\s])", flat):
                    count = len(re.findall(r"\S*\w\S*", sentence))
                    if count > SENTENCE_WORDS:
                        yield Finding(path, line, f"a sentence of {count} words, at most {SENTENCE_WORDS}: "
                                                  f"\"{' '.join(sentence.split()[:8])} ...\"")


def markdown_width(tree):
    for path, text in tree.text.items():
        if path.endswith(".md"):
            written = GENERATED.sub(lambda m: re.sub(r"[^\n]", "", m[0]), text)
            for number, line in enumerate(written.split("\n"), 1):
                if len(line) > MARKDOWN_WIDTH:
                    yield Finding(path, number, f"{len(line)} columns, at most {MARKDOWN_WIDTH}")


def bad_subject(subject):
    """What is wrong with a commit's subject, or nothing."""
    if len(subject) > SUBJECT_WIDTH:
        return f"{len(subject)} characters, at most {SUBJECT_WIDTH}"
    return "" if SUBJECT.match(subject) else "does not read `component: change`"


def subjects(tree, base=BASE):
    listed = subprocess.run(["git", "-C", tree.root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD"],
                            capture_output=True, text=True, check=False)
    if listed.returncode:
        tree.notes.append(f"subjects of commits were not checked: no history after {base[:7]} here")
    for line in listed.stdout.splitlines():
        commit, _, subject = line.partition(" ")
        wrong = bad_subject(subject)
        if wrong:
            yield Finding(commit, 1, f"\"{subject}\": {wrong}")


RULES = [replaced_words, sentences, markdown_width, subjects]


def main():
    import tidy  # here, because tidy reads this file for its rules
    count = collections.Counter((folder, kind) for folder, kind, *_ in replaced(tidy.Tree(sys.argv[1])))
    for folder in sorted({folder for folder, _ in count}):
        print(f'    "{folder}": ({count[folder, 0]}, {count[folder, 1]}),')


if __name__ == "__main__":
    main()
