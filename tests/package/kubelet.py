# SPDX-License-Identifier: Apache-2.0
"""What kubelet and a container runtime do with the volumes, the propagation, the users and the
probes of a pod, without a cluster: a node is a mount namespace with a shared mount, and a container
is a process in a mount namespace of its own. Requires root.

Not simulated: the image (its entry point runs with the programs of the tested build), the PID
namespace, cgroups, capabilities and seccomp.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from conftest import BUILD, LIMIT, ROOT, SLOW, eventually, processes_of, stop

ENTRYPOINT = ROOT / "data/container/serve"
PROGRAMS = ["fstfs", "fstfs-cache"]  # of containers
PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
# $1: the node's files, which the container then loses; SOURCE TARGET PROPAGATION MODE for each
# volume mount; --; the command
ENTER = """
node=$1
shift
while [ "$1" != -- ]; do
    mount --rbind "$1" "$2" && mount "--make-$3" "$2" || exit 125
    [ "$4" = rw ] || mount -o remount,bind,ro "$2" || exit 125
    shift 4
done
shift
mount --make-rprivate "$node" && umount -R -l "$node" || exit 125
exec "$@"
"""


def pod_of(document):
    """The PodSpec of a manifest."""
    return document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]


class Node:
    """A node. `folders` stand for the paths of hostPath volumes and the names of claims; other
    hostPath volumes are directories of the node's own file system."""

    def __init__(self, place, folders):
        self.place, self.folders = Path(place), folders
        self.root = self.place / "node"
        self.root.mkdir()
        self.containers = []
        # The build directory may be below a closed directory such as /root.
        programs = self.place / "programs"
        programs.mkdir(mode=0o755)
        for name in PROGRAMS:
            shutil.copy2(BUILD / name, programs)
        self.environment = {**os.environ, "LC_ALL": "C", "PATH": f"{programs}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c",
             'mount -t tmpfs -o mode=755 node "$1" && mount --make-shared "$1" && echo && exec cat',
             "sh", self.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"\n"

    @property
    def enter(self):
        return ["nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt"]

    def run(self, *command):
        return subprocess.run([*self.enter, *command], env=self.environment,
                              capture_output=True, text=True, timeout=60 * SLOW)

    def volume(self, volume):
        """The folder on the node that is mounted for a volume."""
        if "hostPath" in volume:
            path = volume["hostPath"]["path"]
            if path in self.folders:
                return self.folders[path]
            assert volume["hostPath"]["type"] == "DirectoryOrCreate"
        elif "persistentVolumeClaim" in volume:
            return self.folders[volume["persistentVolumeClaim"]["claimName"]]
        else:
            assert "emptyDir" in volume
            path = "/emptyDir/" + volume["name"]
        folder = f"{self.root}{path}"
        assert self.run("mkdir", "-p", folder).returncode == 0
        return folder

    def start(self, pod, spec):
        self.containers.append(Container(self, pod, spec))
        return self.containers[-1]

    def path(self, path):
        """A path of a manifest on this node."""
        return f"{self.root}{path}"

    def fstfs_mounts(self):
        return [line for line in self.run("cat", "/proc/self/mountinfo").stdout.splitlines()
                if " - fuse.fstfs " in line and f" {self.root}/" in line]

    def finish(self):
        for container in self.containers:
            container.end()
        self.process.stdin.close()
        self.process.wait(60 * SLOW)


class Container:
    """A running container of a pod; its files are below a folder of its own."""

    def __init__(self, node, pod, spec):
        self.node, self.spec = node, spec
        self.root = Path(tempfile.mkdtemp(prefix=f"{spec['name']}-", dir=node.place))
        self.root.chmod(0o755)
        self.log = self.root / "log"
        self.user = {**pod.get("securityContext", {}), **spec.get("securityContext", {})}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        binds = []
        for mount in spec["volumeMounts"]:
            target = self.root / mount["mountPath"].lstrip("/")
            target.mkdir(parents=True)
            binds += [node.volume(volumes[mount["name"]]), target,
                      PROPAGATION[mount.get("mountPropagation", "None")],
                      "ro" if mount.get("readOnly") else "rw"]
        command = [*spec.get("command", [ENTRYPOINT]), *spec.get("args", [])]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                ["timeout", "-s", "KILL", str(LIMIT), *node.enter, "unshare", "-m", "--propagation",
                 "unchanged", "sh", "-c", ENTER, "sh", node.root, *binds, "--",
                 *self.as_its_user(), *self.here(command)],
                env=node.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)

    def as_its_user(self):
        if "runAsUser" not in self.user:
            return []
        return ["setpriv", f"--reuid={self.user['runAsUser']}", f"--regid={self.user['runAsGroup']}",
                "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]

    def here(self, command):
        """The words of a command, with the paths of its volumes replaced."""
        paths = "|".join(re.escape(mount["mountPath"]) for mount in self.spec["volumeMounts"])
        return [re.sub(f"(?<![^ =])({paths})(?=[/ ]|$)", rf"{self.root}\1", os.fspath(word))
                for word in command]

    @property
    def pid(self):
        """`timeout` is its parent; what it executes before the command has the same PID."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return int(f.read().split()[0])

    def run(self, *command, seconds=60 * SLOW):
        """Runs a command in the container, as its user."""
        return subprocess.run(
            ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", *self.as_its_user(),
             *self.here(command)],
            env=self.node.environment, capture_output=True, text=True, timeout=seconds)

    def probe(self, name, seconds=60 * SLOW):
        """Whether a probe succeeds within the given time, whatever its timeoutSeconds."""
        try:
            return self.run(*self.spec[name]["exec"]["command"], seconds=seconds).returncode == 0
        except (subprocess.TimeoutExpired, OSError, IndexError):
            return False

    def log_text(self):
        return self.log.read_text(errors="backslashreplace")

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """Stops its process and waits until it is stopped."""
        stop(self.pid)

    def wait(self):
        return self.process.wait(60 * SLOW)

    def end(self):
        """Kills what is left of it."""
        for pid in processes_of(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(60 * SLOW)
        assert eventually(lambda: not processes_of(self.process.pid))
