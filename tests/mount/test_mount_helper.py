# SPDX-License-Identifier: Apache-2.0
"""mount(8) and fstab: types fuse.fstfs and fstfs."""

import ctypes
import json
import os
import pwd
import re
import subprocess

import oracle
import pytest
from command_line import (daemons, gone, mnt, nothing_left, refused,  # noqa: F401 (fixtures)
                          run, source)
from conftest import child, eventually, mounted_at


# --- mount(8) ---


def with_mount_helper(fstfs, kind, work):
    """Runs work() in a mount namespace in which mount(8) finds the programs for both types: the
    build directory is at /usr/local/bin, for mount.fuse3, which has a PATH of its own;
    mount.fstfs is in /sbin."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount(8)")
    if kind == "fuse.fstfs" and \
            not any(os.path.exists(f"{d}/mount.fuse3") for d in ("/sbin", "/usr/sbin")):
        pytest.skip("mount.fuse3 is not installed")
    sbin = os.path.realpath("/sbin")
    helper = fstfs.parent / "mount.fstfs"
    installed = re.search(r'"(/\S*)/fstfs"', helper.read_text())[1]

    def inside():
        if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS
            return "no mount namespace here"
        commands = [["mount", "--make-rslave", "/"],
                    ["mount", "--bind", fstfs.parent, installed]]
        if kind == "fstfs":
            # a directory with links to everything in it, and the helper
            old = "/mnt"
            commands += [["mount", "--bind", sbin, old], ["mount", "-t", "tmpfs", "sbin", sbin],
                         ["sh", "-c", f"ln -s {old}/* {sbin}/"],
                         ["install", "-m", "755", helper, f"{sbin}/mount.fstfs"]]
        for command in commands:
            done = run(*command)
            assert done.returncode == 0, done
        return work()

    if why := child(inside):
        pytest.skip(why)


@pytest.fixture(params=["fuse.fstfs", "fstfs"])
def kind(request):
    """Both types: that of mount.fuse3, and our own."""
    return request.param


@pytest.mark.parametrize("options", ["defaults", "ro,noauto,nofail,_netdev,x-systemd.automount",
                                     "rw,allow_other", "view=merged", "shards=2", "shard-size=1K",
                                     "nosuid,nodev,noatime", "suid,dev",
                                     "group,relatime,X-own.word=1"])
def test_fstab(fstfs, source, mnt, place, kind, options):
    tab = place / "fstab"
    tab.write_text(f"{source.root} {mnt} {kind} {options} 0 0\n")

    def work():
        done = run("mount", "-T", tab, mnt)
        assert done.returncode == 0, done
        line, = mounted_at(mnt)
        assert " fuse.fstfs " in line
        assert {"ro", "nosuid", "nodev"} <= set(line.split(" - ")[0].split()[5].split(","))
        if options == "view=merged":
            assert sorted(os.listdir(mnt)) == ["config.json", "model.safetensors"]
        elif options == "shards=2":
            with open(mnt / ".fstfs/status") as f:  # a single file is not re-cut by count
                assert json.load(f)["shards"] == 2
        else:
            oracle.check_source(mnt, source, [f"--{options}"])
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_command(fstfs, source, mnt, kind):
    def work():
        done = run("mount", "-t", kind, source.root, mnt)
        assert done.returncode == 0, done
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_command_prints_the_reason(fstfs, source, mnt, place, kind):
    def work():
        refused(run("mount", "-t", kind, place / "nothing", mnt), "nothing")
        refused(run("mount", "-t", kind, "-o", "view=bogus", source.root, mnt), "bogus")
        nothing_left(mnt)

    with_mount_helper(fstfs, kind, work)


def test_mount_exit_status(fstfs, source, mnt, place):
    """The exit status of mount(8): 1 for wrong usage, 32 if mounting failed."""
    def work():
        assert run("mount", "-t", "fstfs", place / "nothing", mnt).returncode == 32
        assert run("mount", "-t", "fstfs", "-o", "bogus", source.root, mnt).returncode == 1
        assert run("mount", "-t", "fstfs", "-o", "setuid=no-such", source.root, mnt).returncode == 1
        helper = os.path.realpath("/sbin/mount.fstfs")
        assert run(helper, source.root).returncode == 1
        assert run(helper, source.root, mnt, "-x").returncode == 1
        assert run(helper, source.root, mnt, "-o", "ro", mnt).returncode == 1
        nothing_left(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_remount_is_refused(fstfs, source, mnt):
    def work():
        assert run("mount", "-t", "fstfs", source.root, mnt).returncode == 0
        done = run("mount", "-o", "remount,ro", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 32
        refused(done, "remount")
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0

    with_mount_helper(fstfs, "fstfs", work)


def test_fake_mount(fstfs, source, mnt):
    """mount -f does everything except mounting. -v prints the command; -s and -n have no effect."""
    def work():
        done = run("mount", "-f", "-v", "-o", "allow_other", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 0
        assert f"/fstfs -o rw,allow_other -- {source.root} {mnt}\n" in done.stdout
        nothing_left(mnt)
        done = run("mount", "-f", "-o", "view=bogus", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 1
        refused(done, "bogus")
        done = run("mount", "-n", "-s", "-v", "-t", "fstfs", source.root, mnt)
        assert done.returncode == 0, done
        assert run("umount", mnt).returncode == 0

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_all(fstfs, source, mnt, place):
    """Existing mounts are not mounted again, noauto entries are not mounted, unusual names work."""
    odd = place / "a model, or -two"
    os.rename(source.root, odd)
    source.root = str(odd)
    other = place / "other"
    other.mkdir()
    tab = place / "fstab"
    escaped = str(odd).replace(" ", "\\040")
    tab.write_text(f"{escaped} {mnt} fstfs nofail 0 0\n{escaped} {other} fstfs noauto 0 0\n")

    def work():
        for _ in range(2):
            done = run("mount", "-a", "-T", tab)
            assert done.returncode == 0, done
            assert len(mounted_at(mnt)) == 1
        assert not mounted_at(other)
        oracle.check_source(mnt, source)
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_as_another_user(fstfs, test_user, source, mnt):
    """With setuid=USER, the daemon and the mount belong to that user."""
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)

    def work():
        done = run("mount", "-t", "fstfs", "-o", f"nodev,setuid={test_user},view=merged",
                   source.root, mnt)
        assert done.returncode == 0, done
        pid, = daemons(mnt)
        assert os.stat(f"/proc/{pid}").st_uid == who.pw_uid
        assert f"user_id={who.pw_uid}," in mounted_at(mnt)[0]
        assert run("umount", mnt).returncode == 0
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_user_mounts_by_fstab(fstfs, test_user, source, mnt, place):
    """A line with `user` lets an unprivileged user mount and unmount."""
    who = pwd.getpwnam(test_user)
    os.chown(mnt, who.pw_uid, who.pw_gid)
    tab = place / "fstab"
    tab.write_text(f"{source.root} {mnt} fstfs user,noauto 0 0\n")

    def work():
        done = run("mount", "--bind", tab, "/etc/fstab")
        assert done.returncode == 0, done
        done = run("mount", mnt, user=test_user)
        assert done.returncode == 0, done
        pid, = daemons(mnt)
        assert os.stat(f"/proc/{pid}").st_uid == who.pw_uid
        done = run("umount", mnt, user=test_user)
        assert done.returncode == 0, done
        gone(mnt)

    with_mount_helper(fstfs, "fstfs", work)


def test_mount_in_a_namespace(fstfs, source, mnt):
    """mount -N mounts in another process's mount namespace, and not in this one."""
    def work():
        with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo && exec sleep 3600"],
                              stdout=subprocess.PIPE) as other:
            try:
                other.stdout.readline()
                inside = f"--mount=/proc/{other.pid}/ns/mnt"
                if run("nsenter", inside, "test", "-d", mnt).returncode:
                    return "in a chroot: mount -N goes to the namespace's own root"
                done = run("mount", "-N", str(other.pid), "-t", "fstfs", source.root, mnt)
                assert done.returncode == 0, done
                assert not mounted_at(mnt)
                with open(f"/proc/{other.pid}/mountinfo", errors="surrogateescape") as f:
                    assert any(line.split()[4] == str(mnt) for line in f)
                done = run("umount", "-N", str(other.pid), mnt)
                assert done.returncode == 0, done
                assert eventually(lambda: not daemons(mnt))
            finally:
                other.kill()

    with_mount_helper(fstfs, "fstfs", work)
