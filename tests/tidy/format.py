"""Prints the sources that clang-format would change. Run as: format.py ROOT

Exit code 77 (ctest: skipped) without clang-format 14, because other versions format differently.
"""

import os
import shutil
import subprocess
import sys

from tidy import Tree, is_code

VERSION = 14


def clang_format():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        found = shutil.which(name)
        if found:
            said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
            if f"version {VERSION}." in said:
                return found
    return None


def main():
    root = sys.argv[1]
    program = clang_format()
    if not program:
        print(f"SKIPPED: no clang-format {VERSION} here, so nothing was checked; bash tests/run.sh installs it")
        sys.exit(77)
    sources = [os.path.join(root, p) for p in Tree(root).code if p.endswith((".hpp", ".cpp"))]
    done = subprocess.run([program, "--dry-run", "-Werror", *sources], check=False)
    print(f"{len(sources)} sources; to fix: {os.path.basename(program)} -i FILE")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
