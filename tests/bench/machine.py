# SPDX-License-Identifier: Apache-2.0
"""The working directory, and programs that run as the measured user."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile

from harness import Failed


def mib(n):
    return n << 20


class Run:
    """The result of one run of an arm."""

    def __init__(self, seconds, size, checksum=None, cpu=None):
        self.seconds, self.bytes, self.checksum, self.cpu = seconds, size, checksum, cpu
        self.facts = {}


class Machine:
    """A working directory, and programs that run as the measured user."""

    def __init__(self, build, place, user):
        self.build, self.user = build, user
        self.root = os.geteuid() == 0
        if user and not self.root:
            raise SystemExit("--user needs root")
        self.identity = {}
        if user:
            entry = pwd.getpwnam(user)
            if os.stat("/dev/fuse").st_mode & 0o6 != 0o6:
                raise SystemExit("only root can open /dev/fuse: chmod 666 /dev/fuse")
            self.identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self.place = place

    def __enter__(self):
        self.folder = self.make_folder(self.place)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def make_folder(self, place):
        folder = tempfile.mkdtemp(prefix="fstfs-bench-io.", dir=place)
        os.chmod(folder, 0o755)
        return folder

    def make_mountpoint(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        if self.identity:
            os.chown(path, self.identity["user"], self.identity["group"])
        return path

    def output(self, *command, **options):
        """Runs a program as the user; returns its standard output as bytes."""
        done = subprocess.run(command, stdout=subprocess.PIPE, **self.identity, **options)
        if done.returncode != 0:
            raise Failed(f"{' '.join(map(str, command))}: exit status {done.returncode}")
        return done.stdout

    def reader(self, reader, segments):
        """Runs a timed reader on segments. `reader` has its options and kind."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix="plan.") as plan:
            plan.writelines(f"{s}\n" for s in segments)
            plan.flush()
            os.chmod(plan.name, 0o644)
            program = f"{self.build}/tests/bench/reader"
            result = json.loads(self.output(program, *reader, plan.name))
        return Run(result["seconds"], result["bytes"], result["sum"])

    def load(self, *arguments):
        """Runs the timed reader that uses libfstfs."""
        result = json.loads(self.output(f"{self.build}/tests/bench/load", *arguments))
        return Run(result["seconds"], result["bytes"], result["sum"])
