"""Nothing that runs in a simulated world reaches outside: what the objects of messages, machines and actors leave to
other libraries. Run as: symbols.py NM LIBRARY.a ...

The guard of the simulated world (apps/testing/guard.cpp) sees what a run calls; this sees what no run has called yet.
"""

import collections
import re
import subprocess
import sys

Call = collections.namedtuple("Call", "library object symbol")
Finding = collections.namedtuple("Finding", "kind call")

# Names as nm prints them, demangled, without the version behind an @.
FORBIDDEN = {
    "a clock": r"(clock|times?|clock_gettime|gettimeofday|timespec_get|ftime|localtime\w*|gmtime\w*)$"
               r"|std::chrono::_V2::\w+_clock::now\(",
    "a wait": r"(nanosleep|clock_nanosleep|u?sleep|select|poll|epoll_wait)$|std::this_thread::",
    "a file": r"(open|openat|creat)(64)?$|f(re)?open(64)?$|(opendir|readdir|scandir|l?stat|fstatat|access|unlink|"
              r"remove|rename|mkdir|rmdir|readlink|symlink|link|getcwd|chdir|mkstemp|tmpfile|mmap|dlopen)(64)?$"
              r"|std::(__cxx11::)?basic_[io]?f(stream|ilebuf)"
              r"|std::filesystem::(?!__cxx11::path|path|__cxx11::filesystem_error|filesystem_error)",
    "the environment": r"(secure_)?getenv$|(set|unset|put)env$|environ$|gethostname$|uname$|get(pp|p|u)id$"
                       r"|std::locale::locale\(char const|setlocale$|isatty$|sysconf$|sched_getcpu$",
    "entropy": r"(getrandom|getentropy|arc4random\w*|s?rand(om)?(_r)?|[dlm]rand48)$|std::random_device::",
    "a thread": r"pthread_create$|std::thread::|std::jthread|(v?fork|clone3?|posix_spawnp?|system|popen|exec[lv]p?e?)$",
    "a socket": r"(socket|connect|accept4?|bind|listen|send(to|msg)?|recv(from|msg)?)$|getaddrinfo$",
    "a terminal": r"std::(cout|cerr|clog|cin)\b|(v?printf|puts|putchar|perror|__printf_chk)$",
}
# What a machine, being a value, has no use for beside all that.
OF_MACHINES = {
    "a lock": r"pthread_|std::(mutex|condition_variable|__condvar)|syscall$",
    "CAF": r"(vtable for |typeinfo for |typeinfo name for )?caf::",
}

# "library object kind": why. What is excused but not there is a finding, too.
EXCUSED = {
    "actors front_doors a file": "compares paths of run folders, by links too, before a job begins",
    "actors session a file": "the same",
    "actors session a thread": "ends a job's actor system on a thread that no caller waits for",
    "actors trainer a thread": "waits for a session: Boost.Asio's loop, inside the caller's thread",
    "actors trainer a wait": "the same",
    "actors trainer the environment": "the same: the loop asks for the size of a page",
}


def undefined(nm, library):
    command = [nm, "--print-file-name", "--undefined-only", "--demangle", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    short = library.rsplit("/", 1)[-1].removeprefix("libtroupe_").removesuffix(".a")
    for line in listed.splitlines():
        where, _, what = line.partition(": ")
        found = re.match(r"\s*[Uwv] (.*)", what)
        if found:
            made = re.sub(r"(_cxx\.cxx|\.cpp)?\.o$", "", where.split(":")[-1]).removeprefix("unity_")
            yield Call(short, made, found[1].split("@")[0])


def findings(calls):
    for call in calls:
        rules = FORBIDDEN | (OF_MACHINES if call.library == "machines" else {})
        for kind, pattern in rules.items():
            if re.match(pattern, call.symbol):
                yield Finding(kind, call)


def check(calls, excused=None):
    """Lines that say what is wrong."""
    excused = EXCUSED if excused is None else excused
    key = lambda f: f"{f.call.library} {f.call.object} {f.kind}"
    found = list(findings(calls))
    wrong = [f"{f.call.library}: {f.call.object} reaches for {f.kind}: {f.call.symbol}"
             for f in found if key(f) not in excused]
    wrong += [f"excused without need: {one}" for one in excused if one not in {key(f) for f in found}]
    return wrong


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    calls = [c for library in sys.argv[2:] for c in undefined(sys.argv[1], library)]
    if not calls:
        sys.exit("nothing undefined at all: these are not the libraries")
    wrong = check(calls)
    for line in wrong:
        print(line)
    print(f"{len(set(calls))} calls of {len({(c.library, c.object) for c in calls})} objects, {len(wrong)} findings")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
