"""Goal: the hier communicator works between two hosts. The hosts are network namespaces that are connected by a virtual
cable and end with their last process. Needs root. Skips, with the reason, where namespaces cannot be made."""

import os
import signal
import subprocess
import sys
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../support"))
from two_hosts import Refused, make_hosts, run  # pylint: disable=wrong-import-position

RANK = sys.argv[1]


class Job:
    """One process per rank, distributed over the hosts."""

    def __init__(self, hosts, layout, mode):
        key = "hosts-test-" + uuid.uuid4().hex
        text = ",".join(map(str, layout))
        places = [host for host, ranks in zip(hosts, layout) for _ in range(ranks)]
        self.ranks = [subprocess.Popen(place.inside(RANK, str(rank), text, mode, key), text=True,
                                       stdout=subprocess.PIPE)
                      for rank, place in enumerate(places)]

    def await_work(self):
        for rank in self.ranks:
            line = rank.stdout.readline()
            assert line == "at work\n", line

    def endings(self):
        said = [rank.communicate()[0].strip() for rank in self.ranks]
        return said, [rank.returncode for rank in self.ranks]


def story_every_reduction_has_the_canonical_bits_for_every_layout_of_hosts(hosts):
    for layout in ((2, 2), (4, 3), (1, 3)):
        said, codes = Job(hosts, layout, "reduce").endings()
        assert codes == [0] * sum(layout), (layout, said, codes)
        assert all(text.endswith("have the canonical bits\ndone") for text in said), (layout, said)


def story_an_abort_on_one_host_ends_the_ranks_of_the_other_host(hosts):
    said, codes = Job(hosts, (2, 2), "abort").endings()
    assert said == ["closed: enough"] * 4 and codes == [0] * 4, (said, codes)


def story_a_killed_rank_is_named_by_the_ranks_of_both_hosts(hosts):
    job = Job(hosts, (2, 2), "work")
    job.await_work()
    job.ranks[3].send_signal(signal.SIGKILL)
    said, codes = job.endings()
    assert codes == [0, 0, 0, -signal.SIGKILL], (said, codes)
    assert all(text.startswith("closed: ") and "rank 3" in text for text in said[:3]), said


def story_a_cut_cable_gives_a_timeout_that_names_ranks_of_the_other_host(hosts):
    job = Job(hosts, (2, 2), "work")
    job.await_work()
    run(*hosts[0].inside("ip", "link", "set", "cable", "down"))
    said, codes = job.endings()
    run(*hosts[0].inside("ip", "link", "set", "cable", "up"))
    assert codes == [0] * 4, (said, codes)
    assert any(text.startswith("timeout: ") and "rank" in text for text in said[:2]), said
    assert any(text.startswith("timeout: ") and "rank" in text for text in said[2:]), said


def main():
    if os.geteuid() != 0:
        print("SKIPPED: making hosts needs root")
        return 77
    try:
        hosts = make_hosts()
    except Refused as why:
        print(f"SKIPPED: cannot make network namespaces here: {why}")
        return 77
    failed = 0
    for name, story in sorted(globals().items()):
        if not name.startswith("story_"):
            continue
        try:
            story(hosts)
            print(f"passed  {name}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILED  {name}\n{error}", flush=True)
    for host in hosts:
        host.close()
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
