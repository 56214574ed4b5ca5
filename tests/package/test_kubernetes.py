# SPDX-License-Identifier: Apache-2.0
"""The examples for Kubernetes: their schema, and rules beyond the schema."""

import json
import re

import pytest
from conftest import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FILES = sorted((ROOT / "data/kubernetes").glob("*.yaml"))
CONTAINERFILE = (ROOT / "data/container/Containerfile").read_text()


def documents():
    return [document for path in FILES for document in yaml.safe_load_all(path.read_text())]


def pods():
    return [document["spec"]["template"]["spec"] if document["kind"] == "DaemonSet"
            else document["spec"] for document in documents()]


def containers():
    """(pod, container) pairs of fstfs, and of readers."""
    return [(pod, container) for pod in pods()
            for container in pod.get("initContainers", []) + pod["containers"]]


def is_ours(container):
    return container["image"].startswith("fstfs:")


@pytest.mark.parametrize("document", documents(), ids=lambda document: document["metadata"]["name"])
def test_schema(document):
    validate = pytest.importorskip("kubernetes_validate",
                                   reason="kubernetes-validate is not installed")
    validate.validate(document, validate.latest_version(), strict=True)


def test_examples_exist():
    assert [path.name for path in FILES] == ["daemonset.yaml", "sidecar.yaml"]
    assert len([c for _, c in containers() if is_ours(c)]) == 2
    assert len([c for _, c in containers() if not is_ours(c)]) == 2


def test_volumes_exist():
    for pod, container in containers():
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_propagation():
    """fstfs propagates mounts, which requires a privileged container; readers receive them. The
    mount is inside the volume, not the volume itself."""
    for _, container in containers():
        mount, = [m for m in container["volumeMounts"] if m["name"] == "mounts"]
        if is_ours(container):
            assert mount["mountPropagation"] == "Bidirectional"
            assert container["securityContext"]["privileged"]
            assert container["args"][-1].startswith(mount["mountPath"] + "/")
            assert container["args"][-2] in [m["mountPath"] for m in container["volumeMounts"]]
            probe = container.get("readinessProbe") or container["startupProbe"]
            assert probe["exec"]["command"] == \
                ["test", "-e", container["args"][-1] + "/.fstfs/status"]
        else:
            assert mount["mountPropagation"] == "HostToContainer"
            assert not container.get("securityContext", {}).get("privileged")
            assert "/mnt/fstfs/tensors" in container["args"][0]


def test_volume_of_the_node():
    """The pod that reads from the node's mount has the folder of the DaemonSet."""
    paths = {volume["hostPath"]["path"] for pod in pods() for volume in pod["volumes"]
             if volume["name"] == "mounts" and "hostPath" in volume}
    assert paths == {"/var/lib/fstfs"}


def test_image():
    """The version of the image; the args do not replace its entry point."""
    version = re.search(r"version: '([^']*)'", (ROOT / "meson.build").read_text())[1]
    assert {c["image"] for _, c in containers() if is_ours(c)} == {f"fstfs:{version}"}
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.MULTILINE)[1]) == \
        ["/usr/lib/fstfs/serve"]
    assert not any("command" in c for _, c in containers() if is_ours(c))
