"""Goal: every snippet of docs/testing.md is, line by line, part of a test that is built.

Run as: snippets.py SOURCE_FOLDER
"""

import glob
import os
import re
import sys


def main():
    source = sys.argv[1]
    built = []
    for path in glob.glob(os.path.join(source, "tests/installed/user_tests/*")):
        with open(path, encoding="utf-8") as f:
            built.append(f.read())
    with open(os.path.join(source, "docs/testing.md"), encoding="utf-8") as f:
        page = f.read()
    snippets = re.findall(r"```(?:cpp|cmake)\n(.*?)```", page, re.S)
    assert len(snippets) >= 8, len(snippets)
    missing = [s for s in snippets if not any(s in text for text in built)]
    sys.exit("\n---\n".join(["not in tests/installed/user_tests:"] + missing) if missing else 0)


if __name__ == "__main__":
    main()
