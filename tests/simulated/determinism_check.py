"""Repeats runs in processes that differ in environment, memory, addresses and folder, and compares their hashes.

Run as: determinism_check.py RUN_HASHES PAYLOAD RUNS

Prints the first event that differs, from both sides. apps/testing/determinism_check.hpp varies what one process can.
"""

import ctypes
import os
import subprocess
import sys
import tempfile

FIRST = "1"
NO_RANDOM_ADDRESSES = 0x0040000  # personality(2)


def fixed_addresses():
    ctypes.CDLL(None).personality(NO_RANDOM_ADDRESSES)


class Host:
    """The environment and the folder of one process."""

    def __init__(self, name, variables=None, fixed=False, files=0):
        self.name, self.variables, self.fixed, self.files = name, variables or {}, fixed, files

    def lines(self, *command):
        plain = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME"}}
        with tempfile.TemporaryDirectory() as folder:
            for i in range(self.files):
                open(os.path.join(folder, f"step-{(i * 7919) % 100000}"), "w", encoding="utf-8").close()
            done = subprocess.run(command, cwd=folder, env={**plain, **self.variables}, stdout=subprocess.PIPE,
                                  text=True, check=False, preexec_fn=fixed_addresses if self.fixed else None)
        if done.returncode != 0:
            sys.exit(f"in the host \"{self.name}\": {' '.join(command)} ended with {done.returncode}")
        return done.stdout.splitlines()


PLAIN = Host("plain")
HOSTS = [
    Host("a large environment, another zone and language",
         {**{f"PADDING_{i}": "x" * 977 for i in range(100)}, "TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8"}, files=300),
    Host("fresh memory holds 0xaa, freed memory is not used again at once",
         {"MALLOC_PERTURB_": str(0x55), "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}),
    Host("fresh memory holds 0x55, one arena, large blocks apart",
         {"MALLOC_PERTURB_": str(0xaa), "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "4096",
          "MALLOC_TOP_PAD_": "1"}),
    Host("addresses that are not random", fixed=True),
]


def first_difference(one, other):
    for a, b in zip(one, other):
        if a != b:
            return a, b
    if len(one) != len(other):
        return (one[len(other):] or ["(no more)"])[0], (other[len(one):] or ["(no more)"])[0]
    return None


def explain(command, seed, host):
    """The first event of a run that differs, in words."""
    parted = first_difference(PLAIN.lines(*command, seed, "trail"), host.lines(*command, seed, "trail"))
    if not parted:
        return "its events are equal: the difference came from an earlier run"
    return f"first event\n  plain: {parted[0]}\n  other: {parted[1]}"


def main():
    command, runs = [os.path.abspath(sys.argv[1]), sys.argv[2]], sys.argv[3]
    expected = PLAIN.lines(*command, FIRST, runs)
    if len(expected) != int(runs):
        sys.exit(f"{len(expected)} runs, not {runs}")
    failed = False
    for host in HOSTS:
        parted = first_difference(expected, host.lines(*command, FIRST, runs))
        print(f"{'differs' if parted else 'same':8} {host.name}")
        if parted:
            failed = True
            print(f"  plain: {parted[0]}\n  other: {parted[1]}\n{explain(command, parted[0].split()[0], host)}")
    # Shows that the comparison can fail: it must find a number of the process in the hashes.
    varied = [h.lines(*command, FIRST, "2", "varied") for h in (PLAIN, HOSTS[0])]
    if not first_difference(*varied):
        failed = True
        print("a dependence on the environment is not found")
    sys.exit(failed)


if __name__ == "__main__":
    main()
