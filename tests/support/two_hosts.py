"""Two hosts: network namespaces that are connected by a virtual cable, and that end with this script. Needs root."""

import subprocess


class Refused(Exception):
    """This machine does not allow network namespaces."""


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Host:
    """A network namespace, kept alive by a process that ends with this script."""

    def __init__(self):
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec cat"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self._holder.stdout.readline() != "ready\n":
            raise Refused(self._holder.stderr.read().strip())
        self.pid = str(self._holder.pid)

    def inside(self, *command):
        return ["nsenter", "--target", self.pid, "--net", *command]

    def close(self):
        self._holder.stdin.close()
        self._holder.wait()


def make_hosts():
    hosts = []
    try:
        for _ in range(2):
            hosts.append(Host())
        run("ip", "link", "add", "cable", "netns", hosts[0].pid, "type", "veth",
            "peer", "name", "cable", "netns", hosts[1].pid)
        for number, host in enumerate(hosts, 1):
            run(*host.inside("ip", "addr", "add", f"10.77.0.{number}/24", "dev", "cable"))
            run(*host.inside("ip", "link", "set", "cable", "up"))
            run(*host.inside("ip", "link", "set", "lo", "up"))
    except (Refused, OSError) as why:
        for host in hosts:
            host.close()
        raise Refused(str(why)) from why
    return hosts
