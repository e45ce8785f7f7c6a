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
    (r"(?-i:Who)(?![^.\n]*\?)", "a named subject"),
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

# A test's name does not begin with one of these: its subject is the part under test.
UNNAMED_SUBJECTS = ["what", "who", "whoever", "nobody"]

# Names in code, with a blank for each underscore (so that no rename changes this table), and what to write instead.
# Only names that mean one thing in all folders stand here.
NAMES = {
    "address board": "address_table",
    "appointment": "assignment",
    "audience": "observer_list",
    "befalls": "applies_to",
    "berth": "rank_slot",
    "company state": "small_job_state",
    "conduct": "protocol_checker",
    "far rank": "remote_rank",
    "ghost job": "null_payload_job",
    "home state": "supervisor_proxy",
    "household": "process_table",
    "linked side": "linked_client",
    "log book": "metric_accumulator",
    "mark book": "coverage_book",
    "meeting kind": "rendezvous_kind",
    "meeting place": "rendezvous_info",
    "old words": "stale_messages",
    "parent side": "launcher_client",
    "placed life": "remote_process",
    "planted now": "an entry of tests/mutants",
    "rank brief": "rank_spec",
    "rank home": "rank_process_options",
    "rank resident": "rank_host",
    "rehearsal": "simulated_job",
    "run word": "run_verdict",
    "side of child": "child_client",
    "step word": "step_status",
    "storage lies": "durability_tracker",
    "summons": "join_info",
    "twin difference": "run_difference",
    "world options": "simulation_options",
}

# Words of which names in code are made, between underscores, and what to write instead.
PARTS = [
    (r"tells?|telling|told", "send, report, or reply"),
    (r"hears?|heard|hearing|unheard", "receive, or on_MESSAGE"),
    (r"mend(?:s|ed)?", "fix"),
    (r"house", "table, or process"),
    (r"boards?", "table, or page"),
    (r"meetings?", "rendezvous"),
    (r"seal(?:s|ed)?", "trailer, or checksum"),
    (r"passengers?", "waiters"),
    (r"surroundings", "context, or services"),
    (r"farewells?|goodbyes?", "shutdown, or bye"),
]

# folder: (words in prose, names in code) that stay there: names of flags and fields that others rely on, and of older
# cases. `python3 -B tests/tidy/prose.py ROOT` prints the table as it is now.
LEFT = {
    "apps": (6, 0),
    "tests": (2, 0),
}
NONE_LEFT = (0, 0)  # for every other folder
