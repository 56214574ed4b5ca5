# SPDX-License-Identifier: Apache-2.0
"""The examples for Kubernetes: its schema, and what a schema does not say."""

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
    """(pod, container), those of ours and those that read."""
    return [(pod, container) for pod in pods()
            for container in pod.get("initContainers", []) + pod["containers"]]


def is_ours(container):
    return container["image"].startswith("fstfs:")


@pytest.mark.parametrize("document", documents(), ids=lambda document: document["metadata"]["name"])
def test_schema(document):
    validate = pytest.importorskip("kubernetes_validate",
                                   reason="kubernetes-validate is not installed")
    validate.validate(document, validate.latest_version(), strict=True)


def test_there_are_both():
    assert [path.name for path in FILES] == ["daemonset.yaml", "sidecar.yaml"]
    assert len([c for _, c in containers() if is_ours(c)]) == 2
    assert len([c for _, c in containers() if not is_ours(c)]) == 2


def test_volumes_are_there():
    for pod, container in containers():
        names = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_propagation():
    """We hand mounts out, which is for privileged containers only; others take them. The mount
    lies in the volume and is not the volume."""
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


def test_one_volume_for_a_node():
    """The pod that reads from the node's mount has the folder that the DaemonSet mounts in."""
    paths = {volume["hostPath"]["path"] for pod in pods() for volume in pod["volumes"]
             if volume["name"] == "mounts" and "hostPath" in volume}
    assert paths == {"/var/lib/fstfs"}


def test_image():
    """The version, and that the image does not give a command of its own in the way of args."""
    version = re.search(r"version: '([^']*)'", (ROOT / "meson.build").read_text())[1]
    assert {c["image"] for _, c in containers() if is_ours(c)} == {f"fstfs:{version}"}
    assert json.loads(re.search(r"^ENTRYPOINT (.*)$", CONTAINERFILE, re.MULTILINE)[1]) == \
        ["/usr/lib/fstfs/serve"]
    assert not any("command" in c for _, c in containers() if is_ours(c))
