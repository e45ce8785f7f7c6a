"""Each rule of tidy.py fires on what it forbids and keeps quiet on what it allows."""

import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import prose
import tidy
import words

HEADER = "#pragma once\n"
CLEAN = {
    "CMakeLists.txt": "add_library(a messages/a.cpp)\n",
    "messages/a.hpp": HEADER + "#include <string>\n",
    "messages/a.cpp": '#include "messages/a.hpp"\n// printf("in a comment")\n'
                      'const char* text = "std::cout << getenv()";\n',
    "actors/include/troupe/trainer.hpp": HEADER,
    "backends/torch/include/troupe/module.hpp": HEADER,
    "tests/CMakeLists.txt": "troupe_test(a SOURCES unit/a_test.cpp)\n",
    "tests/b.py": "def story_of_this_file(folder):\n    pass\n",
    "tests/unit/a_test.cpp": '#include "messages/a.hpp"\n\n#include "tests/support/catch.hpp"\n'
                             'TEST_CASE(\n    "two "\n    "parts", "[tag]") {}\n',
    "README.md": "A sentence.\n",
}
LONG_BODY = "int f(int a, const g& b) noexcept {\n" + "  ++a;\n" * 70 + "}\n"
TABLE = "const std::vector<int> table = {\n" + "  1,\n" * 70 + "};\n"
CLASS = "class c : public d<int(int)> {\n" + "  int f() { return 1; }\n" * 70 + "};\n"

OLD_NAME = "far rank".replace(" ", "_")  # as words.py has it
COUNTED = """## one
| 1 | a | b | WORKS | T1 |
| 2 | a | b | MISSING: why |  |
## Counts
| interface | rows | WORKS | DIFFERENT | MISSING |
|---|---|---|---|---|
| one | 2 | 1 | 0 | 1 |
| all | 2 | 1 | 0 | 1 |
## Tests
- T1: `two parts`
"""

# Per rule: files with a violation each, and files that are allowed.
CASES = {
    "layers": (
        [("messages/x.hpp", HEADER + '#include "backends/lane.hpp"\n'),
         ("backends/x.hpp", HEADER + '#include "actors/rank.hpp"\n'),
         ("backends/x.hpp", HEADER + "#include <troupe/trainer.hpp>\n"),
         ("actors/x.hpp", HEADER + '#include "troupe/module.hpp"\n'),
         ("actors/include/troupe/x.hpp", HEADER + '#include "messages/a.hpp"\n'),
         ("apps/x.hpp", HEADER + "#include <troupe/actors/rank.hpp>\n"),
         ("actors/x.hpp", HEADER + '#include "backends/inproc/group.hpp"\n'),
         ("actors/x.hpp", HEADER + '#include "apps/main.hpp"\n'),
         ("apps/x.hpp", HEADER + '#include "tests/support/catch.hpp"\n'),
         ("apps/service/x.hpp", HEADER + '#include "backends/lane.hpp"\n'),
         ("apps/service/x.hpp", HEADER + '#include "apps/main.hpp"\n'),
         ("apps/examples/x.hpp", HEADER + "#include <troupe/detail/x.hpp>\n"),
         ("actors/x.hpp", HEADER + '#include "rank.hpp"\n')],
        [("actors/x.hpp", HEADER + '#include "backends/lane.hpp"\n'),
         ("actors/x.hpp", HEADER + '#include "troupe/trainer.hpp"\n'),
         ("actors/include/troupe/x.hpp", HEADER + '#include "troupe/trainer.hpp"\n'),
         ("apps/x.hpp", HEADER + "#include <troupe/module.hpp>\n"),
         ("apps/service/x.hpp", HEADER + "#include <troupe/module.hpp>\n"),
         ("actors/x.cpp", '#include "backends/determinism/stable_hash.hpp"\n'),
         ("tests/unit/x.hpp", HEADER + '#include "backends/inproc/group.hpp"\n')]),
    "torch_rooms": (
        [("actors/x.hpp", HEADER + "#include <torch/torch.h>\n"),
         ("backends/inproc/x.hpp", HEADER + "#include <c10/util/Half.h>\n"),
         ("messages/x.hpp", HEADER + "#  include <ATen/core/Tensor.h>\n")],
        [("backends/torch/x.hpp", HEADER + "#include <ATen/core/Tensor.h>\n")]),
    "torch_umbrella": ([], []),  # takes many files: below
    "file_length": (
        [("actors/x.hpp", HEADER + "\n" * 500), ("tests/x.py", "\n" * 601), ("messages/cmake/x.cmake", "\n" * 501)],
        [("actors/x.hpp", HEADER + "\n" * 499), ("docs/x.md", "\n" * 900)]),
    "machine_header": (
        [("actors/lane_machine.hpp", HEADER + "int a;\n" * 119)],
        [("actors/lane_machine.hpp", HEADER + "int a;\n" * 118),
         ("actors/lane_machine.cpp", "int a;\n" * 120),
         ("actors/lane_events.hpp", HEADER + "int a;\n" * 120)]),
    "flags_in_a_row": (
        [("actors/x.hpp", HEADER + "void f(bool a, bool b);\n"),
         ("tests/x.hpp", HEADER + "void f(int a, bool b = true,\n       const bool c);\n"),
         ("apps/x.hpp", HEADER + "void f(bool, bool);\n")],
        [("actors/x.hpp", HEADER + "void f(bool a, int b, bool c);\nbool g(int boolean, bool b);\n"),
         ("actors/y.hpp", HEADER + "using a = std::pair<bool, bool>;\n"),
         ("actors/x.cpp", "const auto f = [](bool a, bool b) {};\n")]),
    "function_length": (
        [("actors/x.hpp", HEADER + LONG_BODY),
         ("actors/x.hpp", HEADER + "namespace a {\nstruct s {\n" + LONG_BODY + "};\n}\n"),
         ("actors/x.hpp", HEADER + LONG_BODY.replace("int f", "c::c").replace("noexcept", ": d(1), e{2}")),
         ("actors/x.hpp", HEADER + LONG_BODY.replace("int f", "bool operator==")),
         ("tests/x.hpp", HEADER + LONG_BODY.replace("  ++a;", "  ++a;\n\n"))],
        [("actors/x.hpp", HEADER + TABLE), ("actors/x.hpp", HEADER + CLASS), ("tests/x.hpp", HEADER + LONG_BODY),
         ("actors/x.hpp", HEADER + LONG_BODY.replace("  ++a;\n", "", 20))]),
    "width": (
        [("actors/x.hpp", HEADER + "// " + "a" * 98 + "\n"), ("apps/x.sh", "# " + "a" * 119 + "\n")],
        [("actors/x.hpp", HEADER + "// " + "a" * 97 + "\n"), ("docs/x.md", "a" * 140 + "\n")]),
    "blanks": ([("docs/x.md", "a \n"), ("docs/x.md", "a"), ("docs/x.md", "\ta\n"), ("docs/x.md", "a\r\n")],
               [("docs/x.md", "")]),
    "sleeps": (
        [("tests/x.hpp", HEADER + "void f() { std::this_thread::sleep_for(1s); }\n"),
         ("actors/x.hpp", HEADER + "void f() { usleep(1); }\n"), ("tests/x.py", "time.sleep(1)\n"),
         ("tests/x.sh", "  sleep 1\n")],
        [("tests/x.hpp", HEADER + "// sleep_for(ever)\n")]),
    "prints": (
        [("backends/x.hpp", HEADER + "void f() { std::cerr << 1; }\n"),
         ("messages/x.hpp", HEADER + 'void f() { printf("a"); }\n')],
        [("apps/x.hpp", HEADER + "void f() { std::cout << 1; }\n"),
         ("backends/x.hpp", HEADER + "void f() { std::snprintf(b, 1, c); }\n")]),
    "environment": (
        [("backends/x.hpp", HEADER + 'auto a = std::getenv("A");\n'),
         ("actors/x.hpp", HEADER + "int a = setenv(b);\n")],
        [("apps/x.hpp", HEADER + 'auto a = std::getenv("A");\n')]),
    "process_wide": (
        [("actors/x.hpp", HEADER + "void f() { std::exit(1); }\n"),
         ("backends/torch/x.hpp", HEADER + "void f() { at::set_num_threads(1); }\n"),
         ("backends/x.hpp", HEADER + "int a = sigaction(1, b, c);\n")],
        [("apps/x.hpp", HEADER + "void f() { std::exit(1); }\n")]),
    "devices": (
        [("backends/torch/x.hpp", HEADER + "auto a = at::empty({1}, at::kCPU);\n"),
         ("backends/torch/x.cpp", "bool a(const at::Tensor& t) { return t.is_cuda(); }\n"),
         ("apps/x.cpp", "auto a = c10::DeviceType::CUDA;\n"),
         ("apps/y.cpp", 'const char* a = "cuda";\n')],
        [("backends/torch/accelerators/x.hpp", HEADER + "auto a = c10::kCUDA;\n"),
         ("messages/x.hpp", HEADER + 'const char* a = "cuda";\n'),
         ("tests/unit/x.hpp", HEADER + "auto a = at::kCPU;\n")]),
    "pure_machines": (
        [("actors/a_machine.hpp", HEADER + "int a = rare(mark::b) ? 1 : 2;\n"),
         ("actors/fit_machine_state.hpp", HEADER + "int a = troupe::rare (mark::b);\n")],
        [("actors/rank.hpp", HEADER + "int a = rare(mark::b);\n"),
         ("actors/a_machine.hpp", HEADER + "bool a = sometimes(b, mark::b);\n")]),
    "caf_rooms": (
        [("apps/x.hpp", HEADER + "using namespace caf;\n"),
         ("actors/x.hpp", HEADER + "void f() { delayed_send(a, b); }\n"),
         ("actors/x.hpp", HEADER + "using r = caf::reacts_to<int>;\n"),
         ("messages/x.hpp", HEADER + "#include <caf/replies_to.hpp>\n"),
         ("tests/x.hpp", HEADER + "#include <caf/all.hpp>\n")],
        [("messages/interfaces.hpp", HEADER + "#include <caf/replies_to.hpp>\nusing r = caf::reacts_to<int>;\n")]),
    "names": ([("actors/utils.hpp", HEADER), ("backends/common/x.hpp", HEADER), ("actors/rank_impl.hpp", HEADER)],
              [("actors/implement.hpp", HEADER)]),
    "words": (
        [("docs/x.md", "TODO\n"), ("actors/x.hpp", HEADER + "// FIXME: later\n"),
         ("actors/x.hpp", HEADER + "int worker = 1;\n"), ("actors/x.hpp", HEADER + "// a process group\n")],
        [("docs/x.md", "other systems have workers\n")]),
    "places": ([("docs/x.md", "cd /" + "root/troupe\n"), ("apps/x.sh", "cp /" + "work/a b\n"),
                ("apps/x.sh", "curl https://" + "pypi.org/simple\n")],
               [("docs/x.md", "actors/" + "home/x and https://troupe.example/" + "root/\n")]),
    "headers": ([("actors/x.hpp", "int a;\n"), ("actors/x.hpp", "// #pragma once\n")], []),
    "named_headers": (
        [("docs/x.md", "See `<troupe/gone.hpp>`.\n"),
         ("actors/x.hpp", HEADER + "/// A job (troupe/detail/job.hpp).\n"),
         ("actors/x.cpp", 'const char* text = "<troupe/jobs.hpp>";\n')],
        [("docs/x.md", "See `<troupe/trainer.hpp>`, `<troupe/NAME.hpp>` and `apps/troupe/gone.hpp`.\n"),
         ("actors/x.hpp", HEADER + "/// A module (troupe/module.hpp).\n")]),
    "links": (
        [("docs/x.md", "See [a](b.md).\n"), ("docs/x.md", "# One\n\nSee [two](#two).\n"),
         ("docs/x.md", "See [a](../README.md#a-part).\n")],
        [("docs/x.md", "# `One` of [2](../README.md)\n\nSee [one](#one-of-2), [b](../messages).\n"),
         ("docs/x.md", "See [a](https://a.b/c#d) and `[a](b.md)`.\n")]),
    "catch_last": (
        [("tests/x.hpp", HEADER + '#include "tests/support/catch.hpp"\n#include <string>\n'),
         ("tests/x.hpp", HEADER + "#include <catch2/catch.hpp>\n")],
        [("tests/support/x.hpp", HEADER + "#include <catch2/catch.hpp>\n")]),
    "top_level": ([("source/x.hpp", HEADER), ("Makefile", "all:\n")], [(".ci/run", "true\n")]),
    "dead_files": (
        [("actors/x.cpp", "int a;\n"), ("tests/a.cpp", "int a;\n"), ("messages/a.cpp.cpp", "int a;\n")],
        [("tests/CMakeLists.txt", "troupe_test(a SOURCES unit/a_test.cpp\n ../messages/a.cpp)\n"),
         ("tests/CMakeLists.txt", "t(unit/a_test.cpp ${PROJECT_SOURCE_DIR}/messages/a.cpp)\n")]),
    "documented_tests": (
        [("docs/scenarios.md", "- real: `story_that_is_missing`\n"), ("docs/scenarios.md", "- simulated: none\n"),
         ("docs/scenarios.md", "- simulated: `a rank`\n")],
        [("docs/scenarios.md", "- not simulated: why\n- a list with `code`\n"),
         ("docs/scenarios.md", "- real: `story_of_this_file`\n- simulated: `two parts`\n")]),
    "documented_members": (
        [("docs/members.md", "- T1: `a test that is missing`\n| 1 | a | b | WORKS | T1 |\n"),
         ("docs/members.md", "- T1: `two parts`\n| 1 | a | b | WORKS | T1 |\n| 2 | a | b | WORKS |  |\n"),
         ("docs/members.md", "- T1: `two parts`\n| 1 | a | b | WORKS | T1, T2 |\n"),
         ("docs/members.md", "- T1: `two parts`\n| 1 | a | b | MISSING: why |  |\n")],
        [("docs/members.md", "- T1: `two parts`\n| 1 | a | b | WORKS | T1 |\n| 2 | a | b | MISSING: why |  |\n")]),
    "counted_members": (
        [("docs/members.md", COUNTED.replace("| 2 | a", "| 3 | a")),
         ("docs/members.md", COUNTED.replace("| all | 2 | 1 |", "| all | 2 | 2 |")),
         ("docs/members.md", COUNTED.replace("| one | 2 |", "| other | 2 |")),
         ("docs/members.md", COUNTED.replace("| all |", "| sum |")),
         ("docs/members.md", COUNTED.replace("MISSING: why", "PARTLY: why"))],
        [("docs/members.md", COUNTED)]),
    "replaced_words": (
        [("docs/x.md", "The company of actors.\n"), ("docs/x.md", "It can not be\nsent.\n"),
         ("docs/x.md", "Weights come back behind every step.\n"), ("README.md", "`f()` tells the rank.\n"),
         ("docs/x.md", "One\nmeeting.\n"), ("docs/x.md", f"The type `{OLD_NAME}`.\n"),
         ("tests/x.hpp", HEADER + 'TEST_CASE(\n    "what is due is sent") {}\n'),
         ("docs/x.md", "Who waits for a rank polls.\n"), (".ci/run", "# nobody waits\n"),
         (".ci/x.hpp", HEADER + f"class {OLD_NAME}_2;\n"),
         ("docs/x.hpp", HEADER + "void tell_peers();\n"), ("docs/x.hpp", HEADER + "bool house_;\n")],
        [("docs/x.md", "```\ncompany\n```\n"), ("docs/x.md", "The flag `--mend` and \"the company\".\n"),
         ("docs/x.md", "An observer stands behind a queue.\n"), ("docs/x.md", "What accompanies it.\n"),
         ("docs/x.hpp", HEADER + "int mender = company;\n"),
         ("docs/x.hpp", HEADER + "int retell, tensorboard;\n")]),
    "sentences": (
        [("docs/x.md", "a " * 41 + "\n"), ("docs/x.md", "- " + "a\n  " * 41 + "\n"),
         ("docs/x.md", "| a | " + "b " * 41 + "|\n"), ("docs/x.md", "## " + "a " * 41 + "\n"),
         ("docs/x.md", "One. " + "A " * 41 + "\n")],
        [("docs/x.md", "a " * 40 + "\n"), ("docs/x.md", "a " * 30 + "end. " + "A " * 30 + "\n"),
         ("docs/x.md", ("- " + "a " * 30 + "\n") * 2),
         ("docs/x.md", "| " + "a " * 30 + "| " + "b " * 30 + "|\n"),
         ("docs/x.md", "```\n" + "a\n" * 50 + "```\n"),
         ("docs/x.md", "<!-- x.sh writes from here -->\n" + "a " * 50 + "\n<!-- to here -->\n"),
         ("docs/x.md", "a `" + "b " * 50 + "c`\n"),
         ("docs/x.md", "[a](" + "b" * 9 + ")" + " a" * 39 + "\n")]),
    "markdown_width": (
        [("docs/x.md", "a" * 161 + "\n"), ("README.md", "| " + "a" * 160 + " |\n")],
        [("docs/x.md", "a" * 160 + "\n"),
         ("docs/x.md", "<!-- x.sh writes from here -->\n" + "a" * 200 + "\n<!-- to here -->\n")]),
    "subjects": ([], []),  # takes a repository: below
}


def rules_fired(files, left=None):
    """`left`: what words.LEFT holds."""
    with tempfile.TemporaryDirectory() as root, unittest.mock.patch.object(words, "LEFT", left or {}):
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8", newline="") as f:
                f.write(text)
        return [rule for rule, _ in tidy.check(root, excused={})]


class Rules(unittest.TestCase):
    def test_a_clean_tree_has_no_finding(self):
        self.assertEqual(rules_fired(CLEAN), [])

    def test_every_rule_is_tried(self):
        self.assertEqual(set(CASES), {rule.__name__ for rule in tidy.RULES})

    def test_each_rule_finds_what_it_forbids(self):
        for rule, (forbidden, _) in CASES.items():
            for path, text in forbidden:
                with self.subTest(rule=rule, path=path, text=text[:80]):
                    self.assertIn(rule, rules_fired(CLEAN | {path: text}))

    def test_each_rule_lets_pass_what_it_allows(self):
        for rule, (_, allowed) in CASES.items():
            with self.subTest(rule=rule):
                for path, text in allowed:
                    self.assertNotIn(rule, rules_fired(CLEAN | {path: text}))

    def test_umbrella_sources_are_counted_through_headers(self):
        files = {"backends/torch/heavy.hpp": HEADER + "#include <torch/nn/module.h>\n"}
        for i in range(tidy.UMBRELLA_SOURCES):
            files[f"backends/torch/s{i}.cpp"] = '#include "backends/torch/heavy.hpp"\n'
        self.assertNotIn("torch_umbrella", rules_fired(files))
        files["backends/torch/one_more.cpp"] = "#include <torch/torch.h>\n"
        self.assertIn("torch_umbrella", rules_fired(files))

    def test_replaced_words_are_bounded_per_folder(self):
        files = {"actors/x.hpp": HEADER + f"// nobody, nobody\nint {OLD_NAME};\n"}
        for left, fired in (((2, 1), False), ((3, 2), False), ((1, 1), True), ((2, 0), True), ((0, 1), True)):
            with self.subTest(left=left):
                self.assertEqual("replaced_words" in rules_fired(CLEAN | files, {"actors": left}), fired)

    def test_each_replaced_word_is_shown_where_none_is_left(self):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as f:
                f.write("a\n\nIt can not\nknock.\n")
            self.assertEqual([(f.path, f.line) for _, f in tidy.check(root, {})], [("README.md", 3), ("README.md", 4)])

    def test_a_replacement_is_not_itself_replaced(self):
        for _, instead in words.WORDS:
            self.assertIsNone(prose.WORD.search(instead), instead)
        for _, instead in words.PARTS:
            self.assertIsNone(prose.PART.search(instead), instead)
        for old, new in prose.NAMES.items():
            self.assertIsNone(prose.NAME.search(new), f"{old} -> {new}")

    def test_commit_subjects_have_a_component_and_a_width(self):
        for good in ("tcp: refuse frames over 64 MiB", "data order, simulate: name a seed", ".ci: x", "a: " + "b" * 57):
            self.assertEqual(prose.bad_subject(good), "", good)
        for bad in ("Refuse it", "tcp:refuse", "tcp: ", "Tcp: refuse", "a: " + "b" * 58, "so it is that now tcp: x"):
            self.assertNotEqual(prose.bad_subject(bad), "", bad)

    def test_commits_after_the_base_are_checked_and_no_others(self):
        with tempfile.TemporaryDirectory() as root:
            def git(*words_of_it):
                command = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example", *words_of_it]
                return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            git("init", "-q")
            made = []
            for subject in ("Excused", "tcp: fine", "Not fine"):
                git("commit", "-q", "--allow-empty", "-m", subject)
                made.append(git("rev-parse", "--short", "HEAD"))
            git("checkout", "-q", "-b", "room", made[1])
            git("commit", "-q", "--allow-empty", "-m", "inproc: fine")
            git("merge", "-q", "--no-ff", "-m", "Merge what is not fine", made[2])  # merges are excused
            tree = tidy.Tree(root)
            self.assertEqual([f.path for f in prose.subjects(tree, made[0])], [made[2]])
            self.assertEqual(tree.notes, [])
            self.assertEqual(list(prose.subjects(tree, "f" * 40)), [])
            self.assertIn("not checked", tree.notes[0])

    def test_an_excuse_holds_for_its_file_and_needs_a_reason_to_be(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "actors"))
            with open(os.path.join(root, "actors/x.hpp"), "w", encoding="utf-8") as f:
                f.write("int a;\n")
            self.assertEqual([r for r, _ in tidy.check(root, {"headers actors/x.hpp": "a test"})], [])
            self.assertEqual([r for r, _ in tidy.check(root, {"width actors/x.hpp": "a test"})],
                             ["headers", "excuses"])

    def test_ignored_files_are_not_looked_at_and_new_ones_are(self):
        with tempfile.TemporaryDirectory() as root:
            subprocess.run(["git", "init", "-q", root], check=True)
            for path, text in ((".gitignore", "/out/\n"), ("out/Makefile", "all:\n"), ("new.txt", "a\n")):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            self.assertEqual([f.path for _, f in tidy.check(root, {})], ["new.txt"])

    def test_the_program_names_file_line_and_rule_and_fails(self):
        with tempfile.TemporaryDirectory() as root:
            with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as f:
                f.write("a\nb \n")
            run = subprocess.run([sys.executable, tidy.__file__, root], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 1)
            self.assertIn("README.md:2: blanks", run.stdout)
            self.assertIn("[blanks]", run.stdout)


if __name__ == "__main__":
    unittest.main()
