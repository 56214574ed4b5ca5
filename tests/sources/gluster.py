# SPDX-License-Identifier: Apache-2.0
"""A GlusterFS volume with a copy on each of two hosts, which are network namespaces here: Debian's
glusterfs-server, nothing of it in the system's own folders. Needs root."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from conftest import eventually

STATE = ("/var/lib/glusterd", "/run", "/var/log/glusterfs")
ADDRESS = "198.51.100.{}"  # for documentation: no host that is meant can have it


def run(*command, check=True):
    done = subprocess.run([os.fspath(word) for word in command], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Host:
    """A network namespace, with mounts of its own over what glusterd writes to."""

    def __init__(self, place, number, name):
        self.address = ADDRESS.format(number)
        self.name, self.place = name, place / f"host{number}"
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
        self.daemon = subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", "unshare", "-m",
                                        "sh", "-c", script], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def gluster(self, *words, check=True):
        return run("nsenter", "-t", str(self.daemon.pid), "-n", "-m", "gluster", "--mode=script",
                   *words, check=check)

    def processes(self):
        """Of this host: all in its network namespace."""
        return [int(pid) for pid in run("ip", "netns", "pids", self.name, check=False).split()]


class Gluster:
    """`path`: where the volume is mounted."""

    def __init__(self, place):
        self.place = place / "gluster"
        self.path = self.place / "volume"
        self.path.mkdir(parents=True)
        self.names = [f"fstfs-{os.getpid()}-{i}" for i in range(3)]
        self.hosts = []
        self.client = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        client, *names = self.names
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "-n", client, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", client, "addr", "add", f"{ADDRESS.format(9)}/24", "dev", "bridge")
        run("ip", "-n", client, "link", "set", "bridge", "up")
        for i, name in enumerate(names, 1):
            run("ip", "-n", client, "link", "add", f"to{i}", "type", "veth", "peer", "name",
                "eth0", "netns", name)
            run("ip", "-n", client, "link", "set", f"to{i}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{ADDRESS.format(i)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")
        self.hosts = [Host(self.place, i, name) for i, name in enumerate(names, 1)]
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
        self.client = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{client}", "glusterfs", "--no-daemon",
             f"--volfile-server={first.address}", "--volfile-id=v",
             f"--log-file={self.place}/client.log", os.fspath(self.path)],
            stdin=subprocess.DEVNULL)
        assert eventually(lambda: os.path.ismount(self.path), 30, 0.1)
        assert eventually(lambda: self.bricks_up() == 2, 30, 0.2)
        self.path.chmod(0o755)

    def bricks_up(self):
        text = self.hosts[0].gluster("volume", "status", "v", "--xml", check=False)
        nodes = re.findall(r"<node>.*?</node>", text, re.DOTALL)
        return sum("/brick</path>" in node and "<status>1</status>" in node for node in nodes)

    def stop_brick(self, host):
        """Kills the one process that serves the host's copy."""
        for pid in host.processes():
            with open(f"/proc/{pid}/comm") as f:
                if f.read().strip().startswith("glusterfsd"):
                    os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: self.bricks_up() == 1, 30, 0.2)

    def start_brick(self, host):
        self.hosts[0].gluster("volume", "start", "v", "force")
        assert eventually(lambda: self.bricks_up() == 2, 30, 0.2)

    def heal(self):
        """Waits until no copy has anything to make up for."""
        self.hosts[0].gluster("volume", "heal", "v", check=False)
        assert eventually(lambda: set(re.findall(
            r"Number of entries: (\S+)", self.hosts[0].gluster("volume", "heal", "v", "info")))
            == {"0"}, 60, 0.5)

    def __exit__(self, *_):
        if self.client:
            run("umount", "-l", self.path, check=False)
            self.client.terminate()
            self.client.wait()
        for host in self.hosts:
            for pid in host.processes():
                os.kill(pid, signal.SIGKILL)
            host.daemon.wait()
        time.sleep(0.5)
        for name in self.names:
            run("ip", "netns", "delete", name, check=False)
        shutil.rmtree(self.place)
