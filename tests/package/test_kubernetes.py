# SPDX-License-Identifier: Apache-2.0
"""The examples for Kubernetes: the schema of its API, rules beyond the schema, and what they do on
a simulated node (kubelet.py)."""

import copy
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess

import kubelet
import pytest
from conftest import BUILD, ROOT, eventually
from corpus import trees

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FILES = sorted((ROOT / "data/kubernetes").glob("*.yaml"))
CONTAINERFILE = (ROOT / "data/container/Containerfile").read_text()
SLOWFS = BUILD / "tests/slowfs/slowfs"
FIRST_VERSION = (1, 29)  # sidecar containers are enabled
STATUS = "/mnt/fstfs/tensors/.fstfs/status"
MODEL = "/mnt/fstfs/tensors/shards/llama/model.safetensors"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_MEMORY = 256 << 20


def documents():
    return [document for path in FILES for document in yaml.safe_load_all(path.read_text())]


def document_named(name):
    document, = [d for d in documents() if d["metadata"]["name"] == name]
    return document


def containers():
    """(pod, container) pairs of fstfs, and of readers."""
    return [(pod, container) for pod in map(kubelet.pod_of, documents())
            for container in pod.get("initContainers", []) + pod["containers"]]


def is_ours(container):
    return container["image"].startswith("fstfs:") and "command" not in container


def ours():
    return [container for _, container in containers() if is_ours(container)]


def readers():
    return [container for _, container in containers() if not is_ours(container)]


def bytes_of(text):
    """A quantity of Kubernetes, or a size of fstfs: both of these units are powers of 1024."""
    number, unit = re.fullmatch(r"(\d+)([A-Z]i?)", text).groups()
    return int(number) * UNITS[unit]


# --- the schema ---


def validation():
    return pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")


def versions():
    """The versions of Kubernetes whose schema is known and that the examples are for."""
    known = {tuple(map(int, v.split(".")[:2])) for v in validation().utils.all_versions()}
    found = [f"{major}.{minor}" for major, minor in sorted(known) if (major, minor) >= FIRST_VERSION]
    assert len(found) >= 5
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda document: document["metadata"]["name"])
def test_schema(document):
    for version in versions():
        assert validation().validate(document, version, strict=True) == version


def container_in(document):
    return kubelet.pod_of(document)["containers"][0]


WRONG = {
    "an unknown field of a container": lambda d: container_in(d).update(limits={"memory": "3Gi"}),
    "a misspelt field": lambda d: container_in(d)["volumeMounts"][0].update(
        mountPropogation="HostToContainer"),
    "a field of another object": lambda d: kubelet.pod_of(d).update(privileged=True),
    "a number for a string": lambda d: container_in(d).update(args=[1]),
    "a string for a number": lambda d: container_in(d)["livenessProbe"].update(
        timeoutSeconds="10"),
    "a string for a list": lambda d: container_in(d)["livenessProbe"]["exec"].update(
        command="cat /mnt/fstfs/tensors/.fstfs/status"),
    "a missing selector": lambda d: d["spec"].pop("selector"),
    "a volume mount without a path": lambda d: container_in(d)["volumeMounts"][0].pop("mountPath"),
    "an unknown update strategy's field": lambda d: d["spec"]["updateStrategy"].update(kind="x"),
}


@pytest.mark.parametrize("what", WRONG)
def test_schema_refuses(what):
    """A mistake in a valid example is found, by the oldest and by the newest schema."""
    document = copy.deepcopy(document_named("fstfs"))
    WRONG[what](document)
    for version in (versions()[0], versions()[-1]):
        with pytest.raises(validation().ValidationError):
            validation().validate(document, version, strict=True)


# --- rules beyond the schema ---


def test_examples_exist():
    assert [path.name for path in FILES] == ["daemonset.yaml", "reader.yaml", "sidecar.yaml"]
    assert len(ours()) == 2
    assert [container["name"] for container in readers()] == ["warm", "reader", "reader"]


def test_volumes_exist():
    for pod, container in containers():
        names = {volume["name"] for volume in pod["volumes"]}
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert {mount["name"] for mount in container["volumeMounts"]} <= names
        assert len(set(paths)) == len(paths)


def test_selectors():
    for document in documents():
        if document["kind"] != "Pod":
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_propagation():
    """fstfs propagates mounts, which requires a privileged container; readers receive them. The
    mount is inside the volume, not the volume itself, also not by subPath."""
    for _, container in containers():
        mount, = [m for m in container["volumeMounts"] if m["name"] == "mounts"]
        assert "subPath" not in mount and "subPathExpr" not in mount
        if is_ours(container):
            assert mount["mountPropagation"] == "Bidirectional"
            assert container["securityContext"]["privileged"]
            assert container["args"][-1].startswith(mount["mountPath"] + "/")
            assert container["args"][-2] in [m["mountPath"] for m in container["volumeMounts"]]
        else:
            assert mount["mountPropagation"] == "HostToContainer" and mount["readOnly"]
            assert not container.get("securityContext", {}).get("privileged")
            assert "/mnt/fstfs/tensors" in container["args"][0]


def test_probes():
    """All of them read the status of the mount. A daemon that starts slowly is not killed for it."""
    for container in ours():
        probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
        assert {"startupProbe", "livenessProbe"} <= probes.keys()
        for probe in probes.values():
            assert probe["exec"]["command"] == ["cat", container["args"][-1] + "/.fstfs/status"]
    daemon, = [c for p, c in containers() if is_ours(c) and c in p["containers"]]
    assert "readinessProbe" in daemon


def test_memory():
    """The limit has room for both budgets, buffers and headers, and for what is not charged."""
    for container in ours():
        memory = next((bytes_of(a.split("=")[1]) for a in container["args"]
                       if a.startswith("--memory=")), DEFAULT_MEMORY)
        limit = bytes_of(container["resources"]["limits"]["memory"])
        assert limit >= memory + max(memory, 1 << 30) + (512 << 20)
    for _, container in containers():
        resources = container.get("resources", {})
        if "limits" in resources:
            assert bytes_of(resources["requests"]["memory"]) <= \
                bytes_of(resources["limits"]["memory"])
            assert "cpu" not in resources["limits"]


def test_volume_of_the_node():
    """The pod that reads from the node's mount has the folder of the DaemonSet."""
    paths = {volume["hostPath"]["path"] for pod, _ in containers() for volume in pod["volumes"]
             if volume["name"] == "mounts" and "hostPath" in volume}
    assert paths == {"/var/lib/fstfs"}


def test_image():
    """The version of the image; the args do not replace its entry point."""
    version = re.search(r"version: '([^']*)'", (ROOT / "meson.build").read_text())[1]
    assert {c["image"] for c in ours()} == {f"fstfs:{version}"}
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.MULTILINE)[1]) == \
        ["/usr/lib/fstfs/serve"]


# --- on a simulated node ---


@pytest.fixture
def make_node(fstfs, mount, place):
    """make_node(models): a node whose /models, or claim `models`, is that folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mount namespaces")
    for program in ("nsenter", "setpriv", "unshare"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"cannot create a mount namespace: {probe.stderr.strip()}")
    if subprocess.run(["nsenter", "--mount=/proc/self/ns/mnt", "test", "-e", place]).returncode:
        pytest.skip("in a chroot, which nsenter leaves")
    made = []

    def make(models):
        made.append(kubelet.Node(place, {"/models": models, "models": models}))
        return made[-1]

    yield make
    for node in made:
        node.finish()


@pytest.fixture
def models(place):
    source = trees.Source(place / "models")
    source.add("llama", "model", [trees.tensor("w", "U8", (3_000_000,)), *trees.small_tensors()])
    return source


def digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def daemon_in(node):
    """Starts the container of the DaemonSet, and waits for its startup probe."""
    pod = kubelet.pod_of(document_named("fstfs"))
    daemon = node.start(pod, pod["containers"][0])
    assert eventually(lambda: daemon.probe("startupProbe"), 30), daemon.log_text()
    return daemon


def test_daemon_is_killed(make_node, models):
    """A reader waits for the mount, reads it as its user, loses it when the daemon is killed, and
    has it again, without being restarted, when the daemon's container is."""
    node = make_node(models.root)
    expected = digest_of(models.path("llama/model.safetensors"))
    pod = kubelet.pod_of(document_named("reader"))
    warm = node.start(pod, pod["initContainers"][0])
    daemon = daemon_in(node)
    assert daemon.probe("readinessProbe") and daemon.probe("livenessProbe")
    assert warm.wait() == 0, warm.log_text()
    assert os.path.dirname(MODEL) in warm.log_text()
    warmed = node.path("/var/lib/fstfs/tensors/shards/llama/model.safetensors")
    cached = node.run(BUILD / "tests/bench/reader", "cached", warmed)
    size = os.path.getsize(models.path("llama/model.safetensors"))
    assert int(cached.stdout) >= size, cached  # in whole pages
    reader = node.start(pod, pod["containers"][0])
    assert eventually(lambda: expected in reader.log_text(), 30), reader.log_text()

    daemon.signal(signal.SIGKILL)
    daemon.wait()
    status = node.path("/var/lib/fstfs/tensors/.fstfs/status")
    for where, path in ((node, status), (reader, STATUS)):
        assert eventually(lambda where=where, path=path: "endpoint is not connected"
                          in where.run("cat", path).stderr)
    again = daemon_in(node)
    assert again.probe("livenessProbe")
    assert len(node.fstfs_mounts()) == 1
    assert node.run("cat", status).returncode == 0
    assert reader.run("sha256sum", MODEL).stdout.startswith(expected)

    again.signal(signal.SIGTERM)
    assert again.wait() == 0, again.log_text()
    assert node.fstfs_mounts() == []
    assert "No such file" in reader.run("cat", STATUS).stderr


def test_missing_model(make_node, models):
    """The init container fails, and is therefore retried, if the model does not exist."""
    shutil.move(models.path("llama"), models.path("other"))
    node = make_node(models.root)
    daemon_in(node)
    pod = kubelet.pod_of(document_named("reader"))
    assert node.start(pod, pod["initContainers"][0]).wait() != 0


def test_storage_hangs(make_node, mount, models, place):
    """Probes succeed while storage hangs, and fail while the daemon does not answer."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")
    rules = place / "faults"
    slow = mount(models.root, "-o", f"faults={rules},valid=0,age=60,allow_other", binary=SLOWFS)
    node = make_node(slow.path)
    daemon = daemon_in(node)
    set_rules(rules, "* llama* hang\n")
    pod = kubelet.pod_of(document_named("reader"))
    warm = node.start(pod, pod["initContainers"][0])
    assert eventually(lambda: requests_in(daemon) > 0)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert daemon.probe(probe), probe
    assert warm.process.poll() is None

    set_rules(rules, "")
    assert warm.wait() == 0, warm.log_text()
    daemon.stop()
    assert not daemon.probe("livenessProbe", seconds=2)
    daemon.signal(signal.SIGCONT)
    assert daemon.probe("livenessProbe")


def set_rules(path, text):
    """Replaces the file of slowfs' faults in one step."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.rename(new, path)


def requests_in(daemon):
    """Requests that the daemon has not answered, without that for its status."""
    requests = json.loads(daemon.run("cat", STATUS).stdout)["kernel"]["requests"]
    return requests["running"] + requests["queued"]


def test_sidecar(make_node, models):
    """The reader of the pod sees the mount of its sidecar, which unmounts at the end."""
    node = make_node(models.root)
    pod = kubelet.pod_of(document_named("fstfs-sidecar"))
    sidecar = node.start(pod, pod["initContainers"][0])
    assert eventually(lambda: sidecar.probe("startupProbe"), 30), sidecar.log_text()
    reader = node.start(pod, pod["containers"][0])
    assert reader.wait() == 0
    assert "/tensors/llama" in reader.log_text()
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0, sidecar.log_text()
    assert node.fstfs_mounts() == []
