"""Writes the manifest of a Kubernetes Job: numbered pods, one on each node, that meet through a headless Service.

The fields are those of the API's reference for batch/v1 Job and v1 Service. Pods of an indexed Job are called
JOB-INDEX, and the Service gives them the host names JOB-INDEX.SERVICE
(kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from efficientbench.basics.errors import LaunchError
from efficientbench.launchers.job_scripts.torchrun import Meeting
from efficientbench.launchers.network.cluster_env import RENDEZVOUS_TIMEOUT_NAME

HEAD = """\
# Starts {name}. Written by `efficientbench launch`; start it with kubectl apply -f, and follow it with
# kubectl logs -f job/{label}
"""
WORK = "/workspace"
"""Folder in each pod where the claimed volume is mounted, and where relative paths begin."""
STOP_S = 120
"""Seconds that a pod may take to save its state: more than its ranks may take."""
LONGEST = 50
"""Most letters of a job's name: a host's name, with the pod's number behind it, has at most 63 (RFC 1123)."""
STOPPED = 143
"""Exit code of a run that was asked to stop and has saved its state."""


@dataclass(frozen=True)
class Pods:
    """The pods of one run: one on each node."""

    nodes: int
    devices: int
    """Accelerators of each pod; 0: none."""
    resource: str
    """The name under which the cluster's device plugin offers accelerators."""
    image: str
    claim: str
    """PersistentVolumeClaim that all pods mount: output, data, and what else the run reads."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", self.claim) or len(self.claim) > 253:
            raise LaunchError(
                f"--claim: {self.claim[:80]!r} is not a valid claim name: use only lower-case letters, digits, - and ."
            )


def kubernetes_manifest(name: str, command: Sequence[str], pods: Pods, meeting: Meeting) -> str:
    """Return the YAML of a Service and a Job.

    Args:
        name: the run's name.
        command: the complete command line.
        pods: the number of pods, their image, accelerators and volume.
        meeting: the port of node 0, and how long nodes wait for the others.

    Raises:
        LaunchError: an argument is not text in UTF-8, which YAML cannot hold.
    """
    label = _label(name)
    try:
        "\0".join(command).encode()
    except UnicodeEncodeError:
        raise LaunchError("an argument is no text in UTF-8, and a manifest can hold no other") from None
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": label},
        # Publish host names at once: pods meet before any of them is ready.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": label}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": label},
        "spec": _job(label, command, pods, meeting),
    }
    return HEAD.format(name=name, label=label) + yaml.safe_dump_all([service, job], sort_keys=False, allow_unicode=True)


def _label(name: str) -> str:
    """Return a name for a Job and a Service (RFC 1035): small letters, digits and hyphens, a letter first."""
    label = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    return (label if label[:1].isalpha() else f"run-{label}")[:LONGEST].strip("-")


def _job(label: str, command: Sequence[str], pods: Pods, meeting: Meeting) -> dict[str, Any]:
    return {
        "completions": pods.nodes,
        "parallelism": pods.nodes,
        "completionMode": "Indexed",
        # A failed run would fail again; a stopped run resumes from its checkpoint.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [STOPPED]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"spec": _pod(label, command, pods, meeting)},
    }


def _pod(label: str, command: Sequence[str], pods: Pods, meeting: Meeting) -> dict[str, Any]:
    alone = {"labelSelector": {"matchLabels": {"job-name": label}}, "topologyKey": "kubernetes.io/hostname"}
    volumes = [
        {"name": "work", "persistentVolumeClaim": {"claimName": pods.claim}},
        # Ranks and the data's readers share memory, of which a container has 64 MiB by default.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    container: dict[str, Any] = {
        "name": "run",
        "image": pods.image,
        # Not `command`, which would replace the image's entry point, where CANN's environment is set.
        "args": [_literal(word) for word in command],
        "workingDir": WORK,
        "env": _environment(label, pods.nodes, meeting),
        "volumeMounts": [{"name": "work", "mountPath": WORK}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    if pods.devices:
        container["resources"] = {"limits": {pods.resource: pods.devices}}
    return {
        "subdomain": label,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": STOP_S,
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}},
        "containers": [container],
        "volumes": volumes,
    }


def _environment(label: str, nodes: int, meeting: Meeting) -> list[dict[str, Any]]:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    values = {
        "MASTER_ADDR": f"{label}-0.{label}",
        "MASTER_PORT": str(meeting.port),
        "NNODES": str(nodes),
        RENDEZVOUS_TIMEOUT_NAME: str(meeting.timeout_s),
    }
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "NODE_RANK", "valueFrom": index},
    ]


def _literal(word: str) -> str:
    """Return the word so that Kubernetes, which expands $(NAME) in arguments, passes it on as it is."""
    return word.replace("$", "$$")
