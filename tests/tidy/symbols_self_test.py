"""The scan of symbols finds each kind in an object made for it, and nothing in a good one. Arguments: NM AR CXX"""

import os
import subprocess
import sys
import tempfile

import symbols

BAD = {
    "a clock": "#include <chrono>\nauto f() { return std::chrono::system_clock::now(); }",
    "a wait": "#include <unistd.h>\nvoid f() { usleep(1); }",
    "a file": "#include <fstream>\nbool f() { return std::ifstream{\"x\"}.good(); }",
    "the environment": "#include <cstdlib>\nchar* f() { return std::getenv(\"x\"); }",
    "entropy": "#include <random>\nauto f() { return std::random_device{}(); }",
    "a thread": "#include <thread>\nvoid f() { std::thread{[] {}}.join(); }",
    "a socket": "#include <sys/socket.h>\nint f() { return socket(1, 1, 0); }",
    "a terminal": "#include <iostream>\nvoid f() { std::cout << 1; }",
    "a lock": "#include <pthread.h>\nint f(pthread_mutex_t& m) { return pthread_mutex_lock(&m); }",
    "CAF": "namespace caf { void g(); }\nvoid f() { caf::g(); }",
}
GOOD = "#include <filesystem>\n#include <vector>\n" \
       "std::vector<int> f(const std::filesystem::path& p) { return {p.has_filename()}; }\n" \
       "int time_of(int); int opened(int); int g() { return time_of(1) + opened(2); }"


def library(folder, name, source, tools):
    _, ar, cxx = tools
    path = os.path.join(folder, name)
    os.makedirs(path)
    with open(os.path.join(path, "one.cpp"), "w", encoding="utf-8") as f:
        f.write(source + "\n")
    subprocess.run([cxx, "-std=c++20", "-O1", "-c", "one.cpp", "-o", "one.cpp.o"], cwd=path, check=True)
    subprocess.run([ar, "rc", "libtroupe_machines.a", "one.cpp.o"], cwd=path, check=True)
    return list(symbols.undefined(tools[0], os.path.join(path, "libtroupe_machines.a")))


def main():
    tools = sys.argv[1:4]
    failures = []

    def expect(holds, text):
        if not holds:
            failures.append(text)

    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, source) in enumerate(BAD.items()):
            calls = library(folder, f"bad{number}", source, tools)
            kinds = {f.kind for f in symbols.findings(calls)}
            expect(kind in kinds, f"{kind}: not found in {calls}")
            excuse = {f"machines one {k}": "made for it" for k in kinds}
            expect(symbols.check(calls, excuse) == [], f"{kind}: found although excused")
        good = library(folder, "good", GOOD, tools)
        expect(good and symbols.check(good, {}) == [], f"found in a good object: {symbols.check(good, {})}")
        expect(symbols.check(good, {"machines one a clock": "no"}) == ["excused without need: machines one a clock"],
               "an excuse without need is not found")
    print("\n".join(failures) or f"{len(BAD)} kinds found")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
