"""Goal: with the program its completions and manual pages are installed, where bash, zsh, fish and man look for them.

Run as: program.py BUILD_FOLDER SOURCE_FOLDER, with the program in TROUPE_PROGRAM
"""

import os
import shutil
import sys
import tempfile

from install import run

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../end_to_end"))
from completion import Terminal  # pylint: disable=wrong-import-position


def main():
    build, _ = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        run("cmake", "--install", build, "--prefix", folder, "--component", "program")
        share = os.path.join(folder, "share")
        for path in ("bash-completion/completions/troupe", "zsh/vendor-completions/_troupe",
                     "fish/vendor_completions.d/troupe.fish", "man/man1/troupe.1", "man/man1/troupe-fit.1",
                     "man/man1/troupe_service.1"):
            assert os.path.getsize(os.path.join(share, path)) > 0, path
        run("bash", "-c", f"source {share}/bash-completion/completions/troupe && complete -p troupe")
        if shutil.which("man"):
            assert "--max-epochs" in run("man", "-M", f"{share}/man", "-P", "cat", "troupe-fit")
        if shutil.which("zsh"):
            terminal = Terminal(["zsh", "-f", "-i"], folder)
            terminal.write(f"fpath=({share}/zsh/vendor-completions $fpath); autoload -Uz compinit; compinit -u -D; "
                           "echo rea''dy\n")
            terminal.wait_for("ready")
            terminal.write("troupe conf\t")
            terminal.wait_for("troupe config ")
            terminal.close()


if __name__ == "__main__":
    main()
