"""Goal: every snippet of the pages below is, line by line, part of a test that is built.

Run as: snippets.py SOURCE_FOLDER
"""

import glob
import os
import re
import sys

# Page, the files that may hold its snippets, how many it has at least.
PAGES = [
    ("README.md", "tests/installed/user_tests/module_test.cpp", 1),
    ("docs/testing.md", "tests/installed/user_tests/*", 8),
    ("docs/callbacks.md", "tests/unit/torch_callbacks/trainer_test.cpp", 4),
    ("docs/tutorial.md", "tests/installed/tutorial/*", 6),
    ("docs/replicated.md", "tests/unit/torch_replicated/documented_test.cpp", 4),
    ("docs/data.md", "tests/unit/torch/own_data_test.cpp", 3),
    ("docs/embed.md", "apps/examples/command_line.cpp", 1),
    ("docs/trainer.md", "tests/installed/tutorial/main.cpp tests/unit/torch_strategy/windows_test.cpp", 4),
    ("docs/service.md", "tests/integration/job_status_test.cpp", 3),
    ("docs/watching.md", "tests/unit/torch_strategy/resume_test.cpp", 1),
    ("docs/metrics.md", "tests/unit/torch_strategy/measures_test.cpp", 2),
]


def missing(source, page, files, least):
    built = []
    for path in (path for pattern in files.split() for path in glob.glob(os.path.join(source, pattern))):
        with open(path, encoding="utf-8") as f:
            built.append(f.read())
    with open(os.path.join(source, page), encoding="utf-8") as f:
        snippets = re.findall(r"```(?:cpp|cmake)\n(.*?)```", f.read(), re.S)
    assert len(snippets) >= least, (page, len(snippets))
    return [f"not in {files}:\n{s}" for s in snippets if not any(s in text for text in built)]


def main():
    sys.exit("\n---\n".join(text for one in PAGES for text in missing(sys.argv[1], *one)) or 0)


if __name__ == "__main__":
    main()
