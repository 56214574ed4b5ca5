# SPDX-License-Identifier: Apache-2.0
"""A GlusterFS volume with a copy on each of two hosts, which are network namespaces here: Debian's
glusterfs-server, nothing of it in the system's own folders. Needs root."""

import os
import re
import signal
from pathlib import Path

from conftest import eventually
from network import Cluster, run

STATE = ("/var/lib/glusterd", "/run", "/var/log/glusterfs")


class Host:
    """A network namespace, with mounts of its own over what glusterd writes to."""

    def __init__(self, place, network, number):
        self.address = network.address(number)
        self.network, self.number = network, number
        self.place = place / f"host{number}"
        self.brick = self.place / "brick"
        self.brick.mkdir(parents=True)
        binds = []
        for i, path in enumerate(STATE):
            (self.place / str(i)).mkdir()
            Path(path).mkdir(parents=True, exist_ok=True)
            binds.append(f"mount --bind {self.place}/{i} {path}")
        # a copy of a mount would keep it alive when it is unmounted outside
        binds.append("for path in $(awk '$3 ~ /^fuse/ {print $2}' /proc/mounts); do "
                     "umount -l $path; done")
        script = f"{' && '.join(binds)} && mkdir /run/gluster && exec glusterd --no-daemon"
        self.daemon = network.spawn(number, "unshare", "-m", "sh", "-c", script)

    def gluster(self, *words, check=True):
        return run("nsenter", "-t", str(self.daemon.pid), "-n", "-m", "gluster", "--mode=script",
                   *words, check=check)


class Gluster(Cluster):
    """Two hosts with a brick each, on nodes 1 and 2, and a client on node 0."""

    def __init__(self, place):
        super().__init__(place / "gluster", 3)
        self.hosts = []

    def start(self):
        self.network.start()
        self.hosts = [Host(self.place, self.network, i) for i in (1, 2)]
        first, second = self.hosts
        for host in self.hosts:
            assert eventually(lambda: "Number of Peers" in host.gluster("peer", "status",
                                                                        check=False), 30, 0.2)
        assert eventually(lambda: "success" in first.gluster("peer", "probe", second.address,
                                                             check=False), 30, 0.5)
        assert eventually(lambda: "(Connected)" in first.gluster("peer", "status"), 30, 0.2)
        first.gluster("volume", "create", "v", "replica", "2",
                      *[f"{host.address}:{host.brick}" for host in self.hosts], "force")
        first.gluster("volume", "start", "v")
        self.mount(self.path)
        assert eventually(lambda: self.bricks_up() == 2, 30, 0.2)
        self.path.chmod(0o755)

    def mount(self, path, *options):
        """A client of its own, at a path."""
        path.mkdir()
        self.paths.append(path)
        self.network.spawn(0, "glusterfs", "--no-daemon",
                           f"--volfile-server={self.hosts[0].address}", "--volfile-id=v",
                           f"--log-file={self.place}/{path.name}.log", *options, path)
        assert eventually(lambda: os.path.ismount(path), 30, 0.1)
        return path

    def bricks_up(self):
        text = self.hosts[0].gluster("volume", "status", "v", "--xml", check=False)
        nodes = re.findall(r"<node>.*?</node>", text, re.DOTALL)
        return sum("/brick</path>" in node and "<status>1</status>" in node for node in nodes)

    def stop_brick(self, host):
        """Kills the one process that serves the host's copy, and waits until it is gone: glusterd
        would not start a brick whose process still exits."""
        killed = []
        for pid in self.network.processes(host.number):
            with open(f"/proc/{pid}/comm") as f:
                if f.read().strip().startswith("glusterfsd"):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in killed), 30, 0.1)
        assert eventually(lambda: self.bricks_up() == 1, 30, 0.2)

    def start_brick(self, host):
        self.hosts[0].gluster("volume", "start", "v", "force")
        assert eventually(lambda: self.bricks_up() == 2, 30, 0.2)
        assert eventually(self.are_clients_connected, 30, 0.2)

    def are_clients_connected(self):
        """Whether each client is connected to both bricks. A client connects again seconds after the
        brick has started, and its reads fail if the other brick is killed before."""
        return all("connected = 1" in (path / f".meta/graphs/active/v-client-{i}/private").read_text()
                   for path in self.paths for i in (0, 1))

    def heal(self):
        """Waits until no copy has anything to make up for."""
        self.hosts[0].gluster("volume", "heal", "v", check=False)
        assert eventually(lambda: set(re.findall(
            r"Number of entries: (\S+)", self.hosts[0].gluster("volume", "heal", "v", "info")))
            == {"0"}, 60, 0.5)
