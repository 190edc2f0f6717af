"""The manifest of a Kubernetes Job, read by a reader of its own that knows the API's fields."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from efficientbench.basics.errors import LaunchError
from efficientbench.cli.app import app
from efficientbench.launchers.job_scripts.kubernetes import Pods, kubernetes_manifest
from efficientbench.launchers.job_scripts.torchrun import Meeting

# Fields of kubernetes.io/docs/reference/kubernetes-api, those that may be here; ! marks what the API requires.
OBJECT = {"apiVersion!": str, "kind!": str, "metadata!": {"name!": str}}
POD = {
    "subdomain": str,
    "restartPolicy": str,
    "terminationGracePeriodSeconds": int,
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey!": str, "labelSelector": {"matchLabels": {"job-name!": str}}}
            ]
        }
    },
    "containers!": [
        {
            "name!": str,
            "image!": str,
            "args": [str],
            "workingDir": str,
            "env": [{"name!": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath!": str}}}],
            "volumeMounts": [{"name!": str, "mountPath!": str}],
            "resources": {"limits": {"nvidia.com/gpu": int, "huawei.com/Ascend910": int}},
        }
    ],
    "volumes": [{"name!": str, "persistentVolumeClaim": {"claimName!": str}, "emptyDir": {"medium": str}}],
}
POLICY = {
    "rules!": [
        {
            "action!": str,
            "onExitCodes": {"operator!": str, "values!": [int]},
            "onPodConditions": [{"type!": str, "status!": str}],
        }
    ]
}
JOB = {
    **OBJECT,
    "spec!": {
        "completions": int,
        "parallelism": int,
        "completionMode": str,
        "backoffLimit": int,
        "podFailurePolicy": POLICY,
        "template!": {"spec!": POD},
    },
}
SERVICE = {
    **OBJECT,
    "spec!": {"clusterIP": str, "publishNotReadyAddresses": bool, "selector": {"job-name!": str}},
}


def read(value: Any, fields: Any, where: str) -> None:
    """Fail where a field is missing, unknown, or of another type."""
    if isinstance(fields, Mapping):
        assert isinstance(value, dict), where
        known = {name.rstrip("!"): kind for name, kind in fields.items()}
        assert not set(value) - set(known), where
        assert not {name[:-1] for name in fields if name.endswith("!")} - set(value), where
        for name, each in value.items():
            read(each, known[name], f"{where}.{name}")
    elif isinstance(fields, list):
        assert isinstance(value, list), where
        assert value, where
        for each in value:
            read(each, fields[0], where)
    else:
        assert type(value) is fields, where


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """Return an argument as the kubelet passes it on: $(NAME) is a variable, $$ a dollar."""
    known = re.compile(r"\$(?:(\$)|\((\w+)\))")
    return known.sub(lambda found: "$" if found[1] else variables.get(found[2], found[0]), word)


def documents(*command: str, name: str = "gqa_1.5B_smoke", devices: int = 8) -> tuple[dict[str, Any], dict[str, Any]]:
    pods = Pods(2, devices, "nvidia.com/gpu", "registry.example/eb:1", "shared-data")
    text = kubernetes_manifest(name, ["efficientbench", "run", *command], pods, Meeting(port=29700, timeout_s=45))
    service, job = yaml.safe_load_all(text)
    read(service, SERVICE, "Service")
    read(job, JOB, "Job")
    return service, job


def test_pods_are_numbered_and_find_pod_0() -> None:
    service, job = documents()
    name = job["metadata"]["name"]
    assert (service["kind"], service["apiVersion"], job["kind"], job["apiVersion"]) == (
        "Service",
        "v1",
        "Job",
        "batch/v1",
    )
    assert service["spec"]["clusterIP"] == "None"
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    # Host names: <job>-<index>.<subdomain>, while a Service of the subdomain's name selects the Job's pods.
    assert (service["metadata"]["name"], service["spec"]["selector"]) == (pod["subdomain"], {"job-name": name})
    container = pod["containers"][0]
    variables = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert variables == {
        "MASTER_ADDR": f"{name}-0.{pod['subdomain']}",
        "MASTER_PORT": "29700",
        "NNODES": "2",
        "EFFICIENTBENCH_RENDEZVOUS_TIMEOUT_S": "45",
        "NODE_RANK": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}},
    }
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    assert (container["workingDir"], pod["volumes"][0]["persistentVolumeClaim"]) == (
        "/workspace",
        {"claimName": "shared-data"},
    )
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "resources" not in documents(devices=0)[1]["spec"]["template"]["spec"]["containers"][0]


def test_a_stopped_run_resumes_and_a_failed_one_does_not() -> None:
    spec = documents()[1]["spec"]
    # A failure policy is accepted with this restart policy alone.
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    ignored = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
    assert [rule.get("onExitCodes", {}).get("values") for rule in ignored] == [[143], None]
    assert [rule.get("onPodConditions", [{}])[0].get("type") for rule in ignored] == [None, "DisruptionTarget"]


@pytest.mark.parametrize(
    "word",
    ["$(NNODES)", "$$(NNODES)", "$", "a$b$$", "$(touch pwned)", "a: [b, 'c']\n# d", "- x", "yes", "中 “q”", "", "{a}"],
)
def test_every_argument_reaches_the_run_unchanged(word: str) -> None:
    args = documents(word)[1]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [expanded(each, {"NNODES": "2"}) for each in args] == ["efficientbench", "run", word]


@pytest.mark.parametrize("name", ["gqa_1.5B", "0.5B", "_", "x" * 200, "A--b..c_", "run" + "-" * 60 + "x"])
def test_job_names_give_pods_valid_host_names(name: str) -> None:
    found = documents(name=name)[1]["metadata"]["name"]
    assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", found)
    assert len(f"{found}-99999") <= 63


def test_arguments_that_a_manifest_cannot_hold_are_refused() -> None:
    with pytest.raises(LaunchError, match="no text in UTF-8"):
        documents("\udcff")
    for claim in ("Data", "a_b", "-a", "a\nb", "a" * 254):
        with pytest.raises(LaunchError, match="is not a valid claim name"):
            Pods(1, 1, "nvidia.com/gpu", "image", claim)


def test_the_command_writes_a_manifest(tmp_path: Any) -> None:
    place = ["--to", "kubernetes", "--nodes", "2", "--container", "registry.example/eb:1", "--claim", "shared"]
    output = tmp_path / "job.yaml"
    done = CliRunner().invoke(
        app, ["launch", "gqa_1.5B", "device=npu", *place, "--output", str(output)], catch_exceptions=False
    )
    assert (done.exit_code, done.stdout) == (0, "")
    service, job = yaml.safe_load_all(output.read_text())
    read(service, SERVICE, "Service")
    read(job, JOB, "Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["efficientbench", "run", "gqa_1.5B", "dlc", "device=npu"]
    assert container["resources"] == {"limits": {"huawei.com/Ascend910": 8}}
    assert output.stat().st_mode & 0o111 == 0


def kept(given: Any, found: Any) -> bool:
    """Return whether all that was given was found again; quantities are texts there."""
    if isinstance(given, dict):
        return all(key in found and kept(value, found[key]) for key, value in given.items())
    if isinstance(given, list):
        return len(found) >= len(given) and all(map(kept, given, found))
    return str(given) == str(found)


def test_kubectl_reads_every_field() -> None:
    """The parser of kubectl has types of its own: a field that they lack would be missing in its output."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    service, job = documents("$(NNODES)", "中")
    words = {"Job": ["env", "ADDED=1"], "Service": ["selector", "job-name=" + job["metadata"]["name"]]}
    for document in (job, service, {**job, "spec": {**job["spec"], "completion": 2}}):
        what, change = words[document["kind"]]
        command = ["kubectl", "set", what, "--local", "--output=json", "--filename=-", change]
        done = subprocess.run(
            command,
            input=yaml.safe_dump(document),
            env={**os.environ, "KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert kept(document, json.loads(done.stdout)) == ("completion" not in document["spec"])
