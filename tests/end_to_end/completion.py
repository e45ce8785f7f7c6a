"""Goal: bash, zsh and fish complete the program's commands, flags and values, all of them; man shows its pages.

A shell that is not installed is skipped, with a line that says so.
"""

import functools
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time

from troupe_program import PROGRAM, check, check_code, check_equal, check_in, fail, main, troupe
from troupe_service import SERVICE

# Typed line, and what is offered for its last word: all of `exact`, or at least `some` and none of `never`.
CASES = [
    ("troupe co", {"exact": ["completion", "config"]}),
    ("troupe bench con", {"exact": ["control"]}),
    ("troupe fit --max-e", {"exact": ["--max-epochs"]}),
    ("troupe bench fit --roun", {"exact": ["--rounds"]}),
    ("troupe fit --roun", {"exact": []}),
    ("troupe fit --model ", {"some": ["cnn", "mlp"], "never": ["--model", "fit"]}),
    ("troupe fit --ranks 4 --optimizer ad", {"exact": ["adam", "adamw"]}),
    ("troupe fit --set optimizer.warm", {"exact": ["optimizer.warmup_epochs="]}),
    ("troupe checkpoint export x --format ", {"exact": ["safetensors", "torch"]}),
    ("troupe fit --fast-dev-run --max-s", {"exact": ["--max-steps"]}),
    ("troupe status ru", {"exact": ["runs"]}),
    ("troupe checkpoint list --js", {"exact": ["--json"]}),
]
# With "=" in the word, bash offers what follows it; the other shells offer the whole word.
VALUES = [("troupe fit --optimizer=ad", "--optimizer=", ["adam", "adamw"]),
          ("troupe fit --set data.name=fash", "data.name=", ["fashion_mnist"])]


def script(shell, folder):
    text = check_code(troupe("completion", shell), 0).out
    path = os.path.join(folder, f"completion.{shell}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.makedirs(os.path.join(folder, "runs", "mlp"))
    return path


def installed(shell):
    if not shutil.which(shell):
        print(f"skipped: {shell} is not installed")
    return shutil.which(shell)


def check_offers(line, offered, wanted):
    offered = sorted(set(offered))
    if "exact" in wanted:
        check_equal(offered, sorted(wanted["exact"]), line)
    for word in wanted.get("some", []):
        check(word in offered, f"{line}: {word} is not in {offered}")
    for word in wanted.get("never", []):
        check(word not in offered, f"{line}: {word} is in {offered}")


def said_by(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    check_equal((done.returncode, done.stderr), (0, ""), command)
    return done.stdout.split("\n")[:-1]


BASH = r"""
source "$1"
compopt() { :; }  # it works only while readline completes
COMP_LINE=$2 COMP_POINT=${#2}
# The words as readline divides them: "=" is one of its own.
read -ra COMP_WORDS <<<"${2//=/ = }"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_troupe_complete
printf '%s\n' "${COMPREPLY[@]}"
"""


def story_bash_completes_commands_flags_and_values(folder):
    path = script("bash", folder)
    cases = CASES + [(line, {"exact": values}) for line, _, values in VALUES]
    for line, wanted in cases:
        check_offers(line, [w for w in said_by(["bash", "-c", BASH, "bash", path, line], folder) if w], wanted)


def story_fish_completes_commands_flags_and_values(folder):
    if not installed("fish"):
        return
    path = script("fish", folder)
    cases = CASES + [(line, {"exact": [before + v for v in values]}) for line, before, values in VALUES]
    for line, wanted in cases:
        said = said_by(["fish", "--no-config", "-c", f"source {path}; complete -C {json.dumps(line)}"], folder)
        check_offers(line, [w.split("\t")[0].rstrip("/") for w in said], wanted)


# --- the whole schema -----------------------------------------------------------------------------

# Each reads typed lines, and prints for each what is offered for its last word, then a line "-- end".
BASH_ALL = BASH.replace("COMP_LINE=", "while IFS= read -r line <&3; do\nset -- \"$1\" \"$line\"\nCOMP_LINE=") + r"""
echo "-- end"
done 3<&0 </dev/null
"""
# zsh completes in its line editor only. These stand for the parts of it that the script calls.
ZSH_ALL = r"""
compdef() { }
compset() { PREFIX="${PREFIX#*=}" }
_files() { }
_describe() { print -rl -- "${(@)${(@P)2}%%:*}" }
source "$1"
while IFS= read -r line; do
  words=("${(@s: :)line}")
  CURRENT=${#words} PREFIX="${words[-1]}"
  _troupe
  print -r -- "-- end"
done
"""
FISH_ALL = r"""
source $argv[1]
while read -l line
    complete -C $line
    echo "-- end"
end
"""
SHELLS = {"bash": ["bash", "-c", BASH_ALL, "bash"], "zsh": ["zsh", "-f", "-c", ZSH_ALL, "zsh"],
          "fish": ["fish", "--no-config", "-c", FISH_ALL]}


def settings(properties, table=""):
    """(key, facts) of each setting of the schema."""
    for name, facts in properties.items():
        if "properties" in facts:
            yield from settings(facts["properties"], f"{table}{name}.")
        elif not facts.get("deprecated"):
            yield table + name, facts


def words_of(facts):
    if facts.get("type") == "boolean":
        return ["true", "false"]
    return [word for word in facts.get("enum", facts.get("items", {}).get("enum", [])) if isinstance(word, str)]


@functools.cache
def help_of(words):
    return check_code(troupe(*words, "--help"), 0).out.split("Examples:")[0]


def commands(words=()):
    """The words of each command, as its help names it."""
    yield words
    below = re.search(r"^Subcommands:\n((?: .*\n)+)", help_of(words), re.M)
    for name in re.findall(r"^  (\w[\w-]*)", below[1], re.M) if below else []:
        yield from commands((*words, name))


def flags_of(words):
    names = re.findall(r"^  (?:-\w,)?(--\S+)", help_of(words), re.M)
    return [re.sub(r"[{=].*", "", one) for several in names for one in several.split(",") if one.startswith("--")]


def all_offers():
    """Typed line, what is offered for its last word, and what stands before each offer in that word."""
    document = json.loads(check_code(troupe("config", "schema"), 0).out)
    every = dict(settings(document["properties"]))
    yield "troupe fit --set ", [f"{key}=" for key in every], ""
    for key, facts in every.items():
        yield f"troupe fit --set {key}=", words_of(facts), f"{key}="
        for flag in facts.get("x-flags", []):
            if facts.get("type") != "boolean" and words_of(facts):
                yield f"troupe fit {flag}=", words_of(facts), f"{flag}="
    for words in commands():
        yield " ".join(("troupe", *words, "--")), flags_of(words), ""


def check_whole_schema(shell, folder):
    lines = list(all_offers())
    check(len(lines) > 120, f"only {len(lines)} lines")
    typed = "".join(f"{line}\n" for line, _, _ in lines)
    done = subprocess.run([*SHELLS[shell], script(shell, folder)], input=typed, capture_output=True, text=True,
                          check=False, cwd=folder)
    check_equal((done.returncode, done.stderr[:1000]), (0, ""), shell)
    offers = done.stdout.split("-- end\n")[:-1]
    check_equal(len(offers), len(lines), shell)
    for (line, wanted, before), said in zip(lines, offers):
        found = {word.split("\t")[0] for word in said.splitlines() if word}
        if shell == "fish":  # offers whole words, and a flag whose value may be left out also with "="
            found = {word.removeprefix(before) for word in found} - {f"{flag}=" for flag in wanted}
        if shell == "zsh":  # its editor adds the "=" of a key
            wanted = [word.rstrip("=") for word in wanted]
        check_equal(sorted(found), sorted(set(wanted)), f"{shell}: {line}")


def story_bash_offers_the_whole_schema(folder):
    check_whole_schema("bash", folder)


def story_zsh_offers_the_whole_schema(folder):
    if installed("zsh"):
        check_whole_schema("zsh", folder)


def story_fish_offers_the_whole_schema(folder):
    if installed("fish"):
        check_whole_schema("fish", folder)


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, command, folder):
        self._process, self._fd = pty.fork()
        if self._process == 0:
            os.chdir(folder)
            os.environ.update({"TERM": "dumb", "PS1": "", "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"})
            os.execvp(command[0], command)

    def write(self, text):
        os.write(self._fd, text.encode())

    def wait_for(self, pattern):
        """Reads until `pattern` is there. Fails after a minute."""
        seen, end = "", time.monotonic() + 60
        while not re.search(pattern, seen):
            ready, _, _ = select.select([self._fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                fail(f"{pattern!r} was not shown in a minute: {seen!r}")
            seen += os.read(self._fd, 65536).decode(errors="replace").replace("\a", "")
        return seen

    def close(self):
        self.write("\x15exit\n")
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:  # the shell has ended
            pass
        os.waitpid(self._process, 0)
        os.close(self._fd)


def check_typed(terminal):
    """Each line is completed by the Tab key; the space after the word shows that it is complete."""
    for typed, shown in (("troupe conf\t", r"troupe config "), ("\x15troupe fit --max-e\t", r"fit --max-epochs "),
                         ("\x15troupe fit --optimizer=adamw\t", r"--optimizer=adamw "),
                         ("\x15troupe fit --set data.na\t", r"data\.name="),
                         ("\x15troupe status ru\t", r"status runs/")):
        terminal.write(typed)
        terminal.wait_for(shown)
    terminal.close()


def story_the_tab_key_completes_in_bash(folder):
    path = script("bash", folder)
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], folder)
    terminal.write(f"bind 'set enable-bracketed-paste off'; source {path}; echo rea''dy\n")
    terminal.wait_for("ready")
    check_typed(terminal)


def story_the_tab_key_completes_in_zsh(folder):
    if not installed("zsh"):
        return
    path = script("zsh", folder)
    terminal = Terminal(["zsh", "-f", "-i"], folder)
    terminal.write(f"autoload -Uz compinit; compinit -u -D; source {path}; echo rea''dy\n")
    terminal.wait_for("ready")
    check_typed(terminal)


def story_a_shell_without_a_script_is_refused(_folder):
    ended = check_code(troupe("completion", "tcsh"), 2)
    check_in("bash, zsh, fish", ended.err)


def check_man_reads(page, folder):
    if installed("mandoc"):
        check_equal(said_by(["mandoc", "-T", "lint", "-W", "error", page], folder), [])
    if installed("man"):
        shown = said_by(["man", "--warnings=all", "-E", "UTF-8", "-P", "cat", page], folder)
        check_in("NAME", "\n".join(shown))


def story_man_reads_the_page_of_the_service(folder):
    said = [subprocess.run([SERVICE, flag], capture_output=True, text=True, check=True).stdout
            for flag in ("--manual", "--help")]
    page = os.path.join(folder, "troupe_service.1")
    with open(page, "w", encoding="utf-8") as f:
        f.write(said[0])
    check_in(".TH TROUPE_SERVICE 1", said[0])
    for text in (said[0].replace("\\-", "-"), said[1]):
        for part in ("--token-file", "--jobs", "--manual", "/v1/jobs/first/stop", "Exit codes: 0 stopped by a signal"):
            check_in(part, text)
    check("SEE ALSO" not in said[0], "the only page names itself")
    check_man_reads(page, folder)


def story_man_reads_the_page_of_each_command(folder):
    pages = os.path.join(folder, "man1")
    check_code(troupe("manual", "--output", pages), 0)
    names = sorted(os.listdir(pages))
    for name in ("troupe.1", "troupe-fit.1", "troupe-bench-collectives.1", "troupe-completion.1"):
        check_in(name, names)
    with open(os.path.join(pages, "troupe.1"), encoding="utf-8") as f:
        check_equal(check_code(troupe("manual"), 0).out, f.read())
    for name in names:
        with open(os.path.join(pages, name), encoding="utf-8") as f:
            text = f.read()
        synopsis = re.search(r"^\.SH SYNOPSIS\n\\fB(.*?)\\fR", text, re.M)[1].replace("\\-", "-")
        words = synopsis.split()[1:]
        check_equal("-".join(["troupe", *words]) + ".1", name)
        for flag in flags_of(tuple(words)):
            check_in(flag.replace("-", "\\-"), text, name)
        check_man_reads(os.path.join(pages, name), folder)
    check_in(os.path.join(pages, "troupe.1"), check_code(troupe("manual", "--output", pages), 3).err)
    check_code(troupe("manual", "--output", pages, "--force"), 0)


if __name__ == "__main__":
    main(dict(globals()))
