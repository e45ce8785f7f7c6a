"""Goal: flags of apps/quickstart.sh add to its defaults. Its set-up and its build are replaced by empty scripts.
apps/setup.sh takes the folder of a LibTorch from where the user stands."""

import os
import shutil
import subprocess

from troupe_program import PROGRAM, SMALL_DATA, check, check_equal, check_in, environment, main

APPS = os.path.join(os.path.dirname(__file__), "..", "..", "apps")


def executable(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def checkout(folder):
    """A checkout that holds only the script and the program, which is already built."""
    here = os.path.join(folder, "checkout")
    for name in ("apps", os.path.join("build", "bin"), "tools"):
        os.makedirs(os.path.join(here, name), exist_ok=True)
    for name in os.listdir(APPS):
        if name.startswith("quickstart."):
            shutil.copy(os.path.join(APPS, name), os.path.join(here, "apps"))
    executable(os.path.join(here, "apps", "setup.sh"), "exit 0\n")
    executable(os.path.join(here, "tools", "ninja"), "exit 0\n")
    if not os.path.exists(os.path.join(here, "build", "bin", "troupe")):
        os.symlink(PROGRAM, os.path.join(here, "build", "bin", "troupe"))
    return here


def quickstart(folder, run, *flags, **variables):
    """Runs quickstart.sh with these flags. Returns the config.toml of the run."""
    here = checkout(folder)
    path = os.path.join(here, "tools") + os.pathsep + os.environ["PATH"]
    ended = subprocess.run(["bash", os.path.join(here, "apps", "quickstart.sh"), "--run-dir", run, *flags],
                           capture_output=True, text=True, check=False, env=environment({**variables, "PATH": path}))
    check_equal(ended.returncode, 0, ended.stderr)
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as f:
        return f.read()


ONE_STEP = [*SMALL_DATA, "--max-steps", "1", "--limit-test-batches", "0", "--limit-val-batches", "0"]


def story_a_flag_adds_to_the_defaults_of_quickstart(folder):
    check_in('name = "cnn"', quickstart(folder, os.path.join(folder, "run"), *ONE_STEP))


def story_a_flag_or_variable_or_file_for_the_model_overrides_the_default(folder):
    check_in('name = "mlp"', quickstart(folder, os.path.join(folder, "flag"), *ONE_STEP, "--model", "mlp"))
    check_in('name = "mlp"', quickstart(folder, os.path.join(folder, "variable"), *ONE_STEP, TROUPE_MODEL="mlp"))
    config = os.path.join(folder, "job.toml")
    with open(config, "w", encoding="utf-8") as f:
        f.write('[model]\nname = "mlp"\n')
    check_in('name = "mlp"', quickstart(folder, os.path.join(folder, "file"), *ONE_STEP, "--config", config))


def story_a_resumed_run_keeps_its_model(folder):
    run = os.path.join(folder, "run")
    check_in('name = "mlp"', quickstart(folder, run, *ONE_STEP, "--model", "mlp"))
    again = quickstart(folder, run, "--resume", "latest", "--max-steps", "2")
    check_in('name = "mlp"', again)
    check("max_steps = 2" in again, again)


def story_a_libtorch_is_named_from_where_the_user_stands(folder):
    here = checkout(folder)
    shutil.copy(os.path.join(APPS, "setup.sh"), os.path.join(here, "apps"))
    executable(os.path.join(here, "tools", "dpkg-query"), 'shift 3; for one; do echo "installed $one"; done\n')
    executable(os.path.join(here, "tools", "cmake"), 'echo "$@"\n')
    os.makedirs(os.path.join(folder, "libtorch/share/cmake/Torch"))
    with open(os.path.join(folder, "libtorch/share/cmake/Torch/TorchConfig.cmake"), "w", encoding="utf-8"):
        pass
    path = os.path.join(here, "tools") + os.pathsep + os.environ["PATH"]
    ended = subprocess.run(["bash", "checkout/apps/setup.sh"], cwd=folder, capture_output=True, text=True, check=False,
                           env=environment({"TROUPE_TORCH": "libtorch", "PATH": path}))
    check_equal(ended.returncode, 0, ended.stderr)
    with open(os.path.join(here, "build", "setup.log"), encoding="utf-8") as f:
        check_in(f"-DTROUPE_TORCH={os.path.realpath(folder)}/libtorch", f.read())


if __name__ == "__main__":
    main(globals())
