# SPDX-License-Identifier: Apache-2.0
"""Nodes of a distributed file system: network namespaces that are joined by a bridge. Needs root."""

import contextlib
import os
import shutil
import signal
import subprocess

from conftest import eventually

ADDRESS = "198.51.100.{}"  # TEST-NET-2 (RFC 5737): no real host has it


def run(*command, check=True):
    done = subprocess.run([os.fspath(word) for word in command], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Network:
    """Nodes 0 to count - 1. The bridge is in the namespace of node 0."""

    def __init__(self, count):
        self.names = [f"fstfs-{os.getpid()}-{i}" for i in range(count)]
        self.started = []

    def address(self, node):
        return ADDRESS.format(node or 100)

    def start(self):
        hub, *others = self.names
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "addr", "add", f"{self.address(0)}/24", "dev", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for i, name in enumerate(others, 1):
            run("ip", "-n", hub, "link", "add", f"to{i}", "type", "veth", "peer", "name", "eth0",
                "netns", name)
            run("ip", "-n", hub, "link", "set", f"to{i}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def enter(self, node):
        """The command prefix that runs a program in the network of a node."""
        return ["nsenter", f"--net=/run/netns/{self.names[node]}"]

    def spawn(self, node, *command, output=os.devnull):
        """Starts a process on a node, whose output is appended to a file. It is killed with the
        network."""
        with open(output, "ab") as log:
            process = subprocess.Popen([*self.enter(node), *map(os.fspath, command)],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def processes(self, node):
        """Process IDs of all processes on a node."""
        return [int(pid) for pid in
                run("ip", "netns", "pids", self.names[node], check=False).split()]

    def stop(self):
        """Kills all processes and removes the namespaces."""
        for node in range(len(self.names)):
            for pid in self.processes(node):
                with contextlib.suppress(ProcessLookupError):  # it was about to end
                    os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
        eventually(lambda: not any(map(self.processes, range(len(self.names)))))
        for name in self.names:
            run("ip", "netns", "delete", name, check=False)


class Cluster:
    """A distributed file system on a network of `count` nodes; a context manager. A subclass has
    start(), which appends mount points to `paths`. `path`: where the volume is mounted."""

    def __init__(self, place, count):
        self.place = place
        self.path = place / "volume"
        self.network = Network(count)
        self.place.mkdir(parents=True)
        self.paths = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for path in self.paths:
            run("umount", "-l", path, check=False)
        self.network.stop()
        shutil.rmtree(self.place)
