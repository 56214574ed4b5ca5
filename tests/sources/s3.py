# SPDX-License-Identifier: Apache-2.0
"""A bucket of moto's S3 server on loopback, mounted by rclone or s3fs (Debian's packages) through a
proxy that delays requests, refuses them, cuts replies and disappears. Needs root."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from conftest import eventually
from network import run

BUCKET = "models"
KEYS = ("fstfs", "fstfs-secret")
GOOD = {"delay": 0, "errors": 0, "cut": 0}
SERVER = Path(__file__).with_name("s3_server.py")


def rclone(path, port, expire):
    """Names and attributes are cached for `expire`; there is no cache of content."""
    return ["rclone", "mount", f":s3:{BUCKET}", path, "--read-only", "--allow-other",
            "--s3-provider=Other", f"--s3-endpoint=http://127.0.0.1:{port}",
            f"--dir-cache-time={expire}s", f"--attr-timeout={expire}s", "--vfs-cache-mode=off",
            "--contimeout=2s", "--low-level-retries=1", "--config=/dev/null"]


def s3fs(path, port, expire):
    return ["s3fs", BUCKET, path, "-f", "-o", f"url=http://127.0.0.1:{port}", "-o",
            f"use_path_request_style,stat_cache_expire={expire},ro,allow_other,umask=022,"
            "connect_timeout=2,retries=2"]


class Process:
    """A process of s3_server.py."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([sys.executable, SERVER, *map(str, arguments)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.process.stdout.readline())

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


class S3:
    """`mount_command`: rclone or s3fs of this module."""

    def __init__(self, place, mount_command):
        self.place, self.command = place / "s3", mount_command
        self.place.mkdir()
        self.clients = []
        self.moto = self.proxy = None

    def __enter__(self):
        try:
            self.moto = Process("moto")
            self.proxy = Process("proxy", 0, self.moto.port)
            self.client().create_bucket(Bucket=BUCKET)
        except BaseException:
            self.__exit__()
            raise
        return self

    def client(self):
        """Talks to the server directly."""
        import boto3
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.moto.port}",
                            aws_access_key_id=KEYS[0], aws_secret_access_key=KEYS[1],
                            region_name="us-east-1")

    def put(self, source):
        """Stores all files of a source, in place of older objects."""
        client = self.client()
        for directory, _, names in os.walk(source.root):
            for name in names:
                path = Path(directory, name)
                client.put_object(Bucket=BUCKET, Key=os.fspath(path.relative_to(source.root)),
                                  Body=path.read_bytes())

    def mount(self, name, expire=1):
        """A client of its own, that caches names and attributes for `expire` seconds."""
        path = self.place / name
        path.mkdir()
        environment = {**os.environ, "HOME": os.fspath(self.place),
                       "RCLONE_S3_ACCESS_KEY_ID": KEYS[0], "RCLONE_S3_SECRET_ACCESS_KEY": KEYS[1],
                       "AWS_ACCESS_KEY_ID": KEYS[0], "AWS_SECRET_ACCESS_KEY": KEYS[1]}
        environment.pop("AWS_CA_BUNDLE", None)  # rclone 1.60 fails if it is set
        with open(self.place / f"{name}.log", "wb") as log:
            process = subprocess.Popen(self.command(path, self.proxy.port, expire),
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=environment)
        self.clients.append((path, process))
        assert eventually(lambda: os.path.ismount(path) or process.poll() is not None, 30, 0.1)
        assert process.poll() is None, (self.place / f"{name}.log").read_text()
        return path

    def disturb(self, **faults):
        """Sets the proxy's faults, and returns its counts."""
        return json.loads(self.proxy.ask(json.dumps({**GOOD, **faults})))

    def disappear(self):
        self.proxy.kill()

    def return_again(self):
        self.proxy = Process("proxy", self.proxy.port, self.moto.port)

    def __exit__(self, *_):
        for path, process in self.clients:
            run("umount", "-l", path, check=False)
            process.kill()
            process.wait()
        for process in (self.proxy, self.moto):
            if process:
                process.kill()
        shutil.rmtree(self.place)
