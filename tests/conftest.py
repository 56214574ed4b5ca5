# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests that mount: temporary directories, and mounts that are always removed.

FSTFS_BUILD         build directory (default: build/ next to tests/)
FSTFS_TEST_SLOW     factor for all time limits (for sanitizer builds and valgrind)
PROMTOOL            promtool, if it is not in PATH
FSTFS_TORCH_PYTHON  a Python with torch and transformers
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import pickle
import pwd
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import pytest

# Tests fork after torch has computed something. The child lacks OpenMP's threads and would wait for
# them forever. With one thread there are none.
os.environ["OMP_NUM_THREADS"] = "1"

# Programs leave alone a signal that is ignored when they start. Tests that are started by nohup(1) or
# in the background of a script inherit such signals. One that is caught has its default action in a
# child.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(_number, lambda *_: None)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

FACTOR = float(os.environ.get("FSTFS_TEST_SLOW", "1"))
# Factor for all time limits. A hang lasts forever, and the machine may be busy for seconds. No
# passing test waits for a limit.
SLOW = 4 * FACTOR
INSTRUMENTED = FACTOR > 1  # such builds retain memory
LIMIT = 60 * SLOW  # default time limit of a mount in seconds
BUILD = Path(os.environ.get("FSTFS_BUILD", ROOT / "build")).resolve()
BINARY = BUILD / "fstfs"


def is_sanitized(binary):
    """Whether it is a sanitizer build, which retains memory and needs system calls that other builds
    give up."""
    return binary.exists() and any(
        name in binary.read_bytes() for name in (b"__asan_init", b"__tsan_init"))


SANITIZED = is_sanitized(BINARY)
SANITIZER = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:",
             "WARNING: ThreadSanitizer", "Assertion `", "double free", "corrupted ")


def mounted_at(path):
    """The mountinfo lines of mounts at or below a path."""
    path = os.fspath(path)
    escaped = path.replace("\\", "\\134").replace(" ", "\\040")
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        return [line for line in f
                if (p := line.split()[4]) == escaped or p.startswith(escaped + "/")]


def copied_at(path):
    """Whether a process has a copy of the mount in its own mount namespace. Unmounting here does
    not remove the copy, which keeps the daemon running."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/mountinfo", errors="surrogateescape") as f:
                    if any(line.split()[4] == os.fspath(path) for line in f):
                        return True
            except OSError:
                continue
    return False


def preload(library, copy_to=None, **settings):
    """The environment variables that load tests/sandbox/LIBRARY.so before a program's libraries,
    and its settings. copy_to: a directory for a copy, because the build directory may be closed to
    the user of the program."""
    path = BUILD / f"tests/sandbox/{library}.so"
    if not path.exists():
        pytest.skip(f"tests/sandbox/{library}.so is not built")
    return {"LD_PRELOAD": os.fspath(shutil.copy(path, copy_to) if copy_to else path),
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0",
            **{name: str(value) for name, value in settings.items()}}


def no_leak_check():
    """The environment variables of a process in which LeakSanitizer cannot work, or reports what is not
    a leak."""
    return {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}


def eventually(check, seconds=5, pause=0.02):
    """Calls check() until it returns a true value, and returns it; its last value after a timeout. ESTALE, which
    a mount returns while a file changes, counts as a false value until then."""
    end = time.monotonic() + seconds * SLOW
    while True:
        try:
            found = check()
        except OSError as error:
            if error.errno != errno.ESTALE or time.monotonic() > end:
                raise
            found = False
        if found or time.monotonic() > end:
            return found
        time.sleep(pause)


class Stopwatch:
    """Measures a block: `seconds` without the time for which the machine was too busy to run another
    thread, which only sleeps."""

    def __enter__(self):
        self.stalled, self.ends = 0, threading.Event()
        self.sleeper = threading.Thread(target=self.sleep)
        self.begin = time.monotonic()
        self.sleeper.start()
        return self

    def sleep(self):
        before = time.monotonic()
        while not self.ends.wait(0.01):
            now = time.monotonic()
            self.stalled += max(0, now - before - 0.02)
            before = now

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.begin
        self.ends.set()
        self.sleeper.join()
        self.seconds -= self.stalled


def thread_states(pid):
    """The state letters of all threads, the first thread's first."""
    found = []
    for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        with contextlib.suppress(OSError):  # the thread has ended
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
            found.append(stat.rpartition(")")[2].split()[0])
    return found


def waits_for_fuse(pid):
    """Whether a thread of the process waits for a FUSE server."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            wchan = Path(f"/proc/{pid}/task/{task}/wchan").read_text()
            if wchan.startswith(("request_wait_answer", "fuse_", "__fuse")):
                return True
    return False


def stop(pid):
    """Stops a process, and waits until none of its threads runs. A thread of a FUSE server that
    still runs may take a request, whose caller then waits uninterruptibly until the server
    continues (fs/fuse/dev.c, request_wait_answer)."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: set(thread_states(pid)) == {"T"}), thread_states(pid)


@contextlib.contextmanager
def disk_image(place, size, *make):
    """A mounted file system of its own, in an image file of this size that the command `make`
    formats."""
    image, point = Path(place) / "disk.img", Path(place) / "disk"
    if not shutil.which(make[0]):
        pytest.skip(f"{make[0]} is not installed")
    with open(image, "wb") as f:
        f.truncate(size)
    subprocess.run([*make, image], check=True, capture_output=True)
    point.mkdir()
    if subprocess.run(["mount", "-o", "loop", image, point], capture_output=True).returncode:
        pytest.skip("an image cannot be mounted: not root, or no loop devices")
    try:
        yield point
    finally:
        # A daemon that serves files of it may still run.
        subprocess.run(["umount", "-l", point], check=True)


def map_locked(fd, size=0):
    """Maps the start of a file (0: all of it), reads its pages and locks them, because the kernel
    could otherwise evict them. A process without CAP_IPC_LOCK may lock only as much as
    RLIMIT_MEMLOCK permits; beyond that, the pages are only read."""
    locked, populate = 0x2000, 0x8000  # MAP_LOCKED, MAP_POPULATE
    try:
        return mmap.mmap(fd, size, mmap.MAP_SHARED | locked, mmap.PROT_READ)
    except (BlockingIOError, PermissionError):
        return mmap.mmap(fd, size, mmap.MAP_SHARED | populate, mmap.PROT_READ)


def keep_in_memory(path):
    """Maps a file with map_locked()."""
    with open(path, "rb") as f:
        return map_locked(f.fileno())


def drop_from_page_cache(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def process_stat(pid):
    """The name in /proc/PID/stat, which need not be UTF-8, and the fields after it."""
    with open(f"/proc/{pid}/stat", errors="surrogateescape") as f:
        name, fields = f.read().split("(", 1)[1].rsplit(")", 1)
    return name, fields.split()


def processes_of(session):
    """Process IDs of a session (setsid), without zombies whose parent is init (PID 1)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                _, fields = process_stat(entry)
            except OSError:
                continue
            if int(fields[3]) == session and not (fields[0] == "Z" and fields[1] == "1"):
                found.append(int(entry))
    return found


def kill_all(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGKILL)


def as_user(user):
    """The command prefix that runs a program as another user; empty if we are that user."""
    if user is None or pwd.getpwuid(os.geteuid()).pw_name == user:
        return []
    who = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups",
            "--inh-caps=-all", "env", "-u", "SUDO_USER", f"HOME={os.fspath('/tmp')}"]


def parse_metrics(page):
    """{name: value} of .fstfs/metrics; the name includes the labels."""
    lines = page.decode().splitlines()
    return {name: float(value) if "." in value else int(value) for name, value in
            (line.split() for line in lines if line[0] != "#")}


class Mount:
    """A running fstfs in the foreground under a time limit; use the `mount` fixture."""

    def __init__(self, place, source, *options, user=None, limit=None, binary=BINARY,
                 mountpoint=None, environment=None, wrapper=()):
        self.user = user
        self.source = os.fspath(source)
        self.place = Path(place)
        self.path = os.fspath(mountpoint or tempfile.mkdtemp(prefix="mnt-", dir=place))
        if user is not None and as_user(user):
            who = pwd.getpwnam(user)
            os.chown(self.path, who.pw_uid, who.pw_gid)
        fd, log = tempfile.mkstemp(prefix="log-", dir=place)
        os.close(fd)
        self.log = Path(log)
        self.exit = None
        # The time limit is enforced by another process: a reader that hangs in the kernel is
        # released only by the death of the daemon.
        self.command = ["timeout", "-s", "ABRT", "-k", "5", str(limit or LIMIT), *wrapper,
                        *as_user(user), os.fspath(binary), "-f", *options, self.source, self.path]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, start_new_session=True,
                                            env={**os.environ, **(environment or {})})
        end = time.monotonic() + 20 * SLOW
        while not mounted_at(self.path):
            if self.process.poll() is not None:
                self.exit = self.process.returncode
                raise AssertionError(f"fstfs exited with {self.exit} before it mounted:\n"
                                     f"{self.log_text()}")
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"not mounted after {20 * SLOW:.0f} s:\n{self.log_text()}")
            time.sleep(0.003)

    def __truediv__(self, relative):
        return os.path.join(self.path, relative)

    def log_text(self):
        return self.log.read_text(errors="backslashreplace")

    @property
    def pid(self):
        """The daemon's process ID (`timeout` is its parent)."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return int(f.read().split()[0])

    def read(self, relative):
        with open(self / relative, "rb") as f:
            return f.read()

    def problems(self):
        return self.read(".fstfs/problems").decode().splitlines()

    def status(self):
        return json.loads(self.read(".fstfs/status"))

    def metrics(self):
        return parse_metrics(self.read(".fstfs/metrics"))

    def metric(self, name):
        """One number of .fstfs/metrics, without the prefix of its name."""
        return int(self.metrics()[f"fstfs_{name}"])

    def wait_until_idle(self):
        """Waits until no read is in flight. A load counts a read after its answer, which is part of the
        read's duration, and the kernel's readahead may go on after the reader has its bytes."""
        def is_idle():
            metrics = self.metrics()
            return metrics["fstfs_reads_in_flight"] == metrics["fstfs_storage_reads_in_flight"] == 0

        assert eventually(is_idle), "reads are in flight"

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self):
        """Stops the daemon and waits until it is stopped."""
        stop(self.pid)

    def wait(self, seconds=10):
        try:
            self.exit = self.process.wait(seconds * SLOW)
        except subprocess.TimeoutExpired:
            pass
        return self.exit

    def unmount(self):
        """Unmounts as a user does and returns the daemon's exit status."""
        def done():
            """False if the mount is busy; a reader may have died just now."""
            self.unmounted = subprocess.run(
                [*as_user(self.user), "fusermount3", "-u", self.path], capture_output=True,
                text=True, timeout=20 * SLOW)
            return "busy" not in self.unmounted.stderr

        if self.exit is None:
            eventually(done)
            self.unmounted.check_returncode()
            if self.wait(0.5) is None and copied_at(self.path):
                with contextlib.suppress(OSError, IndexError):  # it may be exiting
                    self.signal(signal.SIGTERM)
            self.wait()
            # Its helpers may have files of another mount open.
            eventually(lambda: not processes_of(self.process.pid))
        return self.exit

    def kill(self):
        """Removes everything, whatever state it is in."""
        if self.process.poll() is None:
            for how in ("-u", "-uz"):
                subprocess.run(["fusermount3", how, self.path], capture_output=True)
                if not mounted_at(self.path):
                    break
            try:
                self.process.wait(3 * SLOW)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                kill_all(processes_of(self.process.pid))
                self.process.wait()
        if mounted_at(self.path):
            subprocess.run(["fusermount3", "-uz", self.path], capture_output=True)
            if mounted_at(self.path):
                subprocess.run(["umount", "-l", self.path], capture_output=True)

    def finish(self, died=False):
        """Teardown: unmounts, and returns a list of everything that is wrong."""
        faults = []
        if self.exit is None and self.process.poll() is None:
            try:
                self.unmount()
            except (subprocess.SubprocessError, OSError) as error:
                faults.append(f"unmount: {error} {getattr(error, 'stderr', '')}")
        else:
            self.exit = self.process.poll()
        if self.exit is None:
            faults.append("the daemon did not exit after the unmount")
        if mounted_at(self.path):
            faults.append("it is still mounted")
        self.kill()
        if self.exit == 124:
            faults.append("the daemon was aborted: time limit")
        elif self.exit not in (0, None) and not died:
            faults.append(f"the daemon exited with {self.exit}")
        # The helpers of a killed daemon die a moment later.
        if not eventually(lambda: not processes_of(self.process.pid)):
            left = processes_of(self.process.pid)
            faults.append(f"remaining processes: {left}")
            kill_all(left)
        text = self.log_text()
        for sign in SANITIZER:
            if sign in text:
                faults.append(f"the log contains {sign}")
        return faults


def make_place():
    path = tempfile.mkdtemp(prefix="fstfs-test-")
    os.chmod(path, 0o755)  # accessible to tests that run as another user
    return Path(path)


def remove_place(path):
    assert not (left := mounted_at(path)), left
    for directory, names, _ in os.walk(path):
        for name in names:  # before os.walk() enters it; a test may have removed its permissions
            below = os.path.join(directory, name)
            if not os.path.islink(below):
                os.chmod(below, 0o700)
    shutil.rmtree(path)


@pytest.fixture
def place():
    """A temporary directory of one test."""
    path = make_place()
    yield path
    remove_place(path)


@pytest.fixture(scope="session")
def shared_place():
    """A directory for sources that many tests read and none changes."""
    path = make_place()
    yield path
    remove_place(path)


@pytest.fixture(scope="session")
def fstfs():
    """The program. Fails if it is not built; skips if the machine cannot mount."""
    if not BINARY.exists():
        pytest.fail(f"{BINARY} does not exist: build first, or set FSTFS_BUILD", pytrace=False)
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    for program in ("fusermount3", "timeout"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("this user cannot open /dev/fuse")
    return BINARY


@pytest.fixture
def mount(fstfs, place, request):
    """mount(source, *options, user=None, limit=None, died=False): a running Mount.

    `died`: the test kills the daemon; its exit status is ignored.
    """
    mounts = []
    request.node.fstfs_mounts = mounts

    def start(source, *options, died=False, **more):
        made = Mount.__new__(Mount)
        mounts.append((made, died))
        made.__init__(place, source, *options, **more)
        return made

    yield start
    faults = []
    for made, died in reversed(mounts):
        if hasattr(made, "process"):
            faults += [f"{made.path}: {fault}" for fault in made.finish(died)]
    request.node.fstfs_logs = [(" ".join(m.command), m.log_text()) for m, _ in mounts
                               if hasattr(m, "log") and m.log.exists()]
    if faults:
        pytest.fail("\n".join(faults + [f"{c}\n{t}" for c, t in request.node.fstfs_logs]),
                    pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and call.when == "call":
        for made, _ in getattr(item, "fstfs_mounts", []):
            if hasattr(made, "log") and made.log.exists():
                report.sections.append((f"fstfs {made.path}", " ".join(made.command) + "\n" +
                                        made.log_text()[-20000:]))


@pytest.fixture
def memory_group():
    """memory_group(bytes): a wrapper that runs a program with that memory limit, and the number of
    processes that the kernel has killed because of it so far."""
    made = []

    def make(limit):
        for root, most in (("/sys/fs/cgroup", "memory.max"),
                           ("/sys/fs/cgroup/unified", "memory.max"),
                           ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            path = f"{root}/fstfs-test-{os.getpid()}"
            try:
                os.mkdir(path)
            except OSError:
                continue
            made.append(path)
            if not os.path.exists(f"{path}/{most}"):
                continue
            with open(f"{path}/{most}", "w") as f:
                f.write(str(limit))
            control = "memory.events" if most == "memory.max" else "memory.oom_control"

            def killed():
                with open(f"{path}/{control}") as f:
                    return int(re.search(r"^oom_kill (\d+)", f.read(), re.MULTILINE)[1])

            join = f'echo $$ > {path}/cgroup.procs; exec "$@"'
            return ("sh", "-c", join, "sh"), killed
        pytest.skip("needs root and a memory controller in /sys/fs/cgroup")

    yield make
    for path in made:
        assert eventually(lambda: removed(path)), path


def removed(path):
    try:
        os.rmdir(path)
        return True
    except OSError:
        return False


@pytest.fixture(autouse=True)
def time_limit(request):
    """Ends a test that the mount's own time limit did not end."""
    marker = request.node.get_closest_marker("limit")
    seconds = (marker.args[0] if marker else 60) * SLOW + 15

    def late(*_):
        raise TimeoutError(f"the test took over {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def pytest_configure(config):
    config.addinivalue_line("markers", "limit(seconds): time limit of a slow test")


class Died(Exception):
    """A child() was killed by the signal .args[0]."""


def become_user(user):
    """In a child process: changes to that user permanently."""
    if user is not None and as_user(user):
        who = pwd.getpwnam(user)
        os.setgroups([])
        os.setresgid(who.pw_gid, who.pw_gid, who.pw_gid)
        os.setresuid(who.pw_uid, who.pw_uid, who.pw_uid)


def allow_crash():
    """In a child process: SIGBUS ends it without pytest's faulthandler and without a core dump."""
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE


def child(work, *args, user=None, seconds=40):
    """Runs work(*args) in a forked process, as `user`, and returns its result or raises its
    exception; Died(signal) if a signal killed it. For anything that may hang or raise SIGBUS."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(out)
            signal.setitimer(signal.ITIMER_REAL, 0)
            allow_crash()
            become_user(user)
            try:
                answer = pickle.dumps((True, work(*args)))
            except BaseException as error:
                try:
                    answer = pickle.dumps((False, error))
                    pickle.loads(answer)
                except Exception:
                    answer = pickle.dumps((False, AssertionError(traceback.format_exc())))
            with open(into, "wb") as f:
                f.write(answer)
            status = 0
        finally:
            os._exit(status)
    os.close(into)
    end = time.monotonic() + seconds * SLOW
    data = bytearray()
    with open(out, "rb", buffering=0) as f:
        while True:
            ready, _, _ = select.select([f], [], [], max(0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise TimeoutError(f"{work.__name__} did not return in {seconds * SLOW:.0f} s")
            part = f.read(1 << 20)
            if not part:
                break
            data += part
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Died(os.WTERMSIG(status))
    fine, answer = pickle.loads(data)
    if not fine:
        raise answer
    return answer


def alive(pid):
    """Whether a process is running; a zombie is not."""
    try:
        return process_stat(pid)[1][0] != "Z"
    except OSError:
        return False


def files_open_in(pid):
    """{descriptor: path} of the files that a process has open."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[fd] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return found


def helpers_of(m, daemon=None):
    """{name: PID} of the daemon's helper processes, once they have set their names."""
    daemon = daemon or m.pid

    def look():
        with open(f"/proc/{daemon}/task/{daemon}/children") as f:
            return {open(f"/proc/{pid}/comm").read().strip(): int(pid) for pid in f.read().split()}

    child(m.read, ".fstfs/status", user=m.user)  # once it serves, all helpers have been started
    assert eventually(lambda: "fstfs" not in look())
    return look()


@pytest.fixture
def test_user(place):
    """The name of an unprivileged user who may mount: the current user, or "nobody" if we are root
    (/dev/fuse is then accessible to all during the test).

    Test suites may run at the same time. Each holds a shared lock on the device while it needs it
    accessible. The sticky bit marks that tests changed the mode, and the last one restores it.
    """
    if os.geteuid() != 0:
        yield pwd.getpwuid(os.geteuid()).pw_name
        return
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(device, fcntl.LOCK_SH)
        mode = stat.S_IMODE(os.fstat(device).st_mode)
        if mode & 0o006 != 0o006:
            try:
                os.fchmod(device, mode | 0o1006)
            except OSError as error:
                pytest.skip(f"cannot make /dev/fuse accessible: {error}")
        yield "nobody"
        try:
            fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        mode = stat.S_IMODE(os.fstat(device).st_mode)
        if mode & 0o1000:
            os.fchmod(device, mode & ~0o1006)
    finally:
        os.close(device)


@pytest.fixture
def user_program(test_user, place):
    """user_program(PATH): a path at which the test user can run a built program. The build
    directory may be below a closed directory such as /root."""
    def reachable(program):
        if subprocess.run([*as_user(test_user), "test", "-x", program]).returncode == 0:
            return program
        copy = place / "programs" / Path(program).name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            shutil.copy2(program, copy)
            copy.parent.chmod(0o755)
            copy.chmod(0o755)
        return copy

    return reachable


@pytest.fixture
def user_binary(fstfs, user_program):
    """fstfs at a path where the test user can run it."""
    return user_program(fstfs)


@pytest.fixture(params=["root", "user"])
def who(request):
    """Options of mount(): the daemon as root, and as an unprivileged user."""
    if request.param == "user":
        return {"user": request.getfixturevalue("test_user"),
                "binary": request.getfixturevalue("user_binary")}
    if os.geteuid() != 0:
        pytest.skip("needs root; the same runs as the user that we are")
    return {}
