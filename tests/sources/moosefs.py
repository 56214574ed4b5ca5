# SPDX-License-Identifier: Apache-2.0
"""MooseFS with one master, two chunkservers and goal 2, each server on a node of its own: Debian's
packages, with all files of the servers in the test's directory. Needs root."""

import os
import re
import shutil
import signal

from conftest import eventually
from network import Cluster, run

EMPTY = "/var/lib/mfs/metadata.mfs.empty"
COMMON = """\
WORKING_USER = root
NICE_LEVEL = 0
DISABLE_OOM_KILLER = 0
DATA_PATH = {place}
"""
MASTER = COMMON + """\
EXPORTS_FILENAME = {place}/exports
TOPOLOGY_FILENAME = {place}/topology
REPLICATIONS_DELAY_INIT = 0
"""
CHUNKSERVER = COMMON + """\
HDD_CONF_FILENAME = {place}/hdd
MASTER_HOST = {master}
MASTER_RECONNECTION_DELAY = 1
"""


class MooseFS(Cluster):
    """The volume is mounted by a client on node 0, that of the master. `chunkservers`: their nodes.
    `clients`: number of further nodes, after those."""

    chunkservers = (1, 2)

    def __init__(self, place, clients=0):
        super().__init__(place / "moosefs", 3 + clients)
        self.servers = {}

    def directory(self, name, **files):
        """A directory of a server, with its files."""
        place = self.place / name
        place.mkdir()
        for file, text in files.items():
            (place / file).write_text(text.format(place=place, master=self.network.address(0)))
        return place

    def start(self):
        self.network.start()
        place = self.directory("master", config=MASTER, topology="",
                               exports="* / rw,alldirs,admin,maproot=0:0\n")
        shutil.copy(EMPTY, place / "metadata.mfs")
        self.network.spawn(0, "mfsmaster", "-f", "-c", place / "config", "start",
                           output=place / "log")
        for node in self.chunkservers:
            place = self.directory(f"chunkserver{node}", config=CHUNKSERVER,
                                   hdd=f"{self.place}/chunkserver{node}/chunks\n")
            (place / "chunks").mkdir()
            self.spawn_chunkserver(node)
        assert eventually(lambda: self.chunkservers_up() == 2, 60, 0.2)
        self.mount(self.path)
        if self.uses_storage_classes():
            run(*self.network.enter(0), "mfssetsclass", "-r", "2CP", self.path)
        else:
            run(*self.network.enter(0), "mfssetgoal", "-r", "2", self.path)
        self.path.chmod(0o755)

    @staticmethod
    def uses_storage_classes():
        """MooseFS 4 (Debian 13) has storage classes; MooseFS 3 (Debian 12) has goals instead."""
        return int(run("mfsmaster", "-v").split()[1].split(".")[0]) >= 4

    def mount(self, path, *options, node=0):
        """A client of its own, at a path."""
        path.mkdir()
        self.paths.append(path)
        log = self.place / f"{path.name}.log"
        client = self.network.spawn(
            node, "mfsmount", "-f", "-n", "-o", ",".join(("allow_other", "mfsnice=0", *options)),
            "-H", self.network.address(0), path, output=log)
        assert eventually(lambda: os.path.ismount(path) or client.poll() is not None, 30, 0.1)
        assert client.poll() is None, log.read_text()
        return path

    def spawn_chunkserver(self, node):
        place = self.place / f"chunkserver{node}"
        self.servers[node] = self.network.spawn(
            node, "mfschunkserver", "-f", "-c", place / "config", "start",
            output=place / "log")

    def chunkservers_up(self):
        """Number of chunkservers that the master knows the free space of."""
        text = run(*self.network.enter(0), "mfscli", "-H", self.network.address(0), "-SCS",
                   check=False)
        lines = [line.split("\t") for line in text.splitlines()]
        return sum(line[0] == "chunk servers:" and int(line[10]) > 0 for line in lines
                   if len(line) > 10)

    def copies(self, *paths):
        """The numbers of copies that the chunks of these files have. MooseFS 3 prints "chunks with 2
        copies: 1", MooseFS 4 "2 full copies (redundancy level: 1): 1"."""
        text = run(*self.network.enter(0), "mfscheckfile", *paths)
        return {int(count) for count in re.findall(r"(\d+) (?:full )?cop", text)}

    def stop_chunkserver(self, node):
        self.servers[node].send_signal(signal.SIGKILL)
        self.servers[node].wait()
        assert eventually(lambda: self.chunkservers_up() == 1, 30, 0.2)

    def start_chunkserver(self, node):
        self.spawn_chunkserver(node)
        assert eventually(lambda: self.chunkservers_up() == 2, 30, 0.2)
