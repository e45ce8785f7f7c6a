"""Goal: a user's tests with troupe::testing build and pass against the installed package.

Run as: testing.py BUILD_FOLDER SOURCE_FOLDER [TORCH_FOLDER]
"""

import os
import shutil
import sys
import tempfile

from install import run


def main():
    build, source, *torch = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        prefix, tree, user = (os.path.join(folder, name) for name in ("prefix", "tree", "user"))
        run("cmake", "--install", build, "--prefix", prefix, "--component", "development")
        shutil.copytree(os.path.join(source, "tests/installed/user_tests"), user)
        settings = [f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-Og"]
        if torch:
            settings.append(f"-DTROUPE_TORCH={torch[0]}")
        run("cmake", "-G", "Ninja", "-S", user, "-B", tree, *settings)
        run("cmake", "--build", tree)
        for program in ("user_tests", "module_tests") if torch else ("user_tests",):
            print(run(os.path.join(tree, program)))


if __name__ == "__main__":
    main()
