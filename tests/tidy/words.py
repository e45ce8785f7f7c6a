"""The words that docs/style.md replaced, and how many of them each folder may still hold."""

# Prose (comments, Markdown, texts in quotes): pattern, what to write instead.
# Only words that have no other use in this project stand here.
WORDS = [
    (r"compan(?:y|ies)", "job, or system"),
    (r"(?:the|this|our|whole) house|house ?rules?", "repository, project, or process"),
    (r"(?:comes?|came|coming|brings?|brought) (?:\w+ ){0,2}home", "is returned"),
    (r"ways? down", "shutdown, or teardown"),
    (r"can not", "cannot"),
    (r"mend(?:s|ed|ing)?", "fix"),
    (r"meetings?", "rendezvous"),
    (r"attendants?", "progress thread"),
    (r"passengers?", "waiters"),
    (r"summons(?:es)?", "join info"),
    (r"appointments?", "assignment"),
    (r"berths?", "slot"),
    (r"households?", "process table"),
    (r"farewells?|goodbyes?", "shutdown message"),
    (r"knock(?:s|ed|ing)?", "notify, or notification"),
    (r"tell(?:s|ing)?|told", "send, report, notify, or show"),
    (r"hear(?:s|d|ing)?", "receive, or is notified"),
    (r"whoever|whomever", "name the rank, the caller, the thread"),
    (r"nobody|somebody|anybody|everybody", "name the rank, the caller, the thread"),
    (r"plant(?:ed|s|ing)", "mutant (of a bug), or insert"),
    (r"rehears(?:al|als|ed|es)", "simulated job"),
    (r"scenes?", "scripted simulation"),
    (r"guests?", "extension"),
    (r"twins?", "determinism check, or second run"),
    (r"strikes?|struck|befalls?|befell|befallen", "a fault applies, is injected, or hits"),
    (r"ghosts?", "null payload"),
    (r"field(?:'s)? (?:payload|job|run|model)s?", "integer payload"),
    (r"old words", "stale messages"),
    (r"without a (?:further )?word|a word to (?:any|some|no)\w*", "without a message, or silently"),
    (r"thaw(?:s|ed|ing)?", "requires-grad guard"),
    (r"behind (?:each|every|it|that|all of|its? outcome|backward|"
     r"the (?:(?:first|last|same|next|whole) )?(?:step|hook|run|fit|call|commit|close|abort|end|failure|outcome)s?)",
     "after (for time)"),
]

# Names in code. Each goes with the rename; the new name is on the right.
IDENTIFIERS = {
    "address_table": "address_table",
    "appointment": "assignment",
    "attendant": "progress_thread",
    "audience": "observer_list",
    "befalls": "applies_to",
    "berth": "slot",
    "conduct": "protocol_checker",
    "remote_rank": "remote_rank",
    "household": "process_table",
    "linked_side": "launcher_client",
    "metric_accumulator": "metric_accumulator",
    "mark_book": "coverage",
    "rendezvous_kind": "rendezvous_kind",
    "rendezvous_info": "rendezvous",
    "old_words": "stale_messages",
    "own_mark": "own_coverage_point",
    "launcher_client": "launcher_client",
    "placed_life": "remote_process",
    "planted_now": "active_mutant",
    "rank_spec": "rank_spec",
    "rank_process_options": "supervisor_proxy",
    "rank_host": "rank_host",
    "rehearsal": "simulated_job",
    "side_of_child": "launcher_client",
    "step_status": "step_status",
    "storage_lies": "storage_faults",
    "summons": "join_info",
}

# folder: (words in prose, names in code) that may be left there. These numbers only fall:
# `python3 -B tests/tidy/prose.py ROOT` prints the table as it is now.
LEFT = {
    ".ci": (1, 0),
    "CMakePresets.json": (1, 0),
    "actors": (98, 93),
    "apps": (307, 145),
    "backends": (338, 208),
    "docs": (0, 12),
    "messages": (61, 23),
    "tests": (500, 94),
}
NONE_LEFT = (0, 0)  # for every other folder
