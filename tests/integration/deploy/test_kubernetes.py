"""Tests of the Kubernetes manifests: they are valid and consistent, and the commands of their pods found a group that accepts
records.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.faults.lab.network import Network
from tests.integration.deploy.sandbox import ROOT, Box, Mount, ready, stopping
from tutti.security.tokens import Access, change_tokens, digest_of, new_token
from tutti_connect.kafka.config import load_source_config
from tutti_gateway.transport.keys import generate

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.30", "1.34")  # the oldest that is looked at, and a new one
CONTAINER = "gateway"


def documents(folder: Path) -> list[dict[str, Any]]:
    """All that the folder's kustomization names."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return [found for name in kustomization["resources"] for found in yaml.safe_load_all((folder / name).read_text("utf-8"))]


def one(kind: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The only document of a kind."""
    [found] = [document for document in documents(folder) if document["kind"] == kind]
    return found


def config_maps(folder: Path) -> dict[str, list[str]]:
    """Config map -> files in it."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    return {made["name"]: made["files"] for made in kustomization["configMapGenerator"]}


PODS = [f"gateway-{number}" for number in range(one("StatefulSet")["spec"]["replicas"])]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", ["", "kafka-in"])
def test_manifests_are_valid_for_kubernetes(folder: str, version: str) -> None:
    for document in documents(FOLDER / folder):
        kubernetes_validate.validate(document, version, strict=True)
    wrong = one("StatefulSet", FOLDER / folder)
    wrong["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_references_between_documents_resolve() -> None:
    for folder in (FOLDER, FOLDER / "kafka-in"):
        spec = one("StatefulSet", folder)["spec"]
        pod = spec["template"]["spec"]
        claims = [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            wanted = {mount["name"] for mount in container["volumeMounts"]}
            assert wanted <= {volume["name"] for volume in pod["volumes"]} | set(claims)
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} & {"secret", "tls"}, (
            "copies, which are private"
        )
        maps = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        assert maps == set(config_maps(folder)) | ({"gateway-public-keys"} if folder == FOLDER else set())
    labels = one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [document["spec"]["selector"] for document in documents(FOLDER) if document["kind"] == "Service"]
    selectors += [
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    headless = next(
        document for document in documents(FOLDER) if document["metadata"]["name"] == one("StatefulSet")["spec"]["serviceName"]
    )
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"]
    assert sorted(config_maps(FOLDER)["gateway"]) == [f"config/{pod}.toml" for pod in PODS]
    inflow = load_source_config(str(FOLDER / "kafka-in/kafka-in.toml"))
    assert inflow.gateways == "tutti://gateway:7400", "the Service that is not headless"


class Pod:
    """Runs the commands of a pod of the set in sandboxes with its volumes."""

    def __init__(self, name: str, network: Network, scratch: Path, names: dict[str, str], opened: ExitStack) -> None:
        self.name = name
        self.spec = one("StatefulSet")["spec"]["template"]["spec"]
        self._network, self._scratch, self._names, self._opened = network, scratch, names, opened
        self._volumes = self._made(scratch / "volumes" / name)

    def _made(self, place: Path) -> dict[str, Path]:
        """Create its volumes: those of config maps and secrets with their contents, the others empty."""
        keys = self._scratch / "keys"
        found = {}
        for volume in [
            *self.spec["volumes"],
            *({"name": claim["metadata"]["name"]} for claim in one("StatefulSet")["spec"]["volumeClaimTemplates"]),
        ]:
            folder = found[volume["name"]] = place / volume["name"]
            folder.mkdir(parents=True)
            files: list[Path] = []
            if "secret" in volume:
                files = sorted((keys / volume["secret"]["secretName"]).iterdir())
            elif volume.get("configMap", {}).get("name") == "gateway-public-keys":
                files = [keys / "gateway-keys/group.keys"]
            elif "configMap" in volume:
                files = [FOLDER / name for name in config_maps(FOLDER)[volume["configMap"]["name"]]]
            for file in files:
                (folder / file.name).write_bytes(file.read_bytes())
        return found

    def _text(self, text: str) -> str:
        """With its variables filled in, as Kubernetes does it."""
        return re.sub(r"\$\(POD\)", self.name, text)

    def box(self, container: dict[str, Any]) -> Box:
        """What one of its containers sees."""
        mounts = []
        for mount in container["volumeMounts"]:
            source = self._volumes[mount["name"]]
            if "subPathExpr" in mount:
                source /= self._text(mount["subPathExpr"])
            mounts.append(Mount(source, mount["mountPath"], not mount.get("readOnly", False)))
        scratch = self._scratch / "boxes" / self.name / container["name"]
        return self._opened.enter_context(
            Box(self._network, self.name, scratch, mounts, names=self._names, environment={"POD": self.name})
        )

    def command(self, container: dict[str, Any], key: str) -> list[str]:
        """Return its command."""
        return [self._text(word) for word in container[key]]


def answered(url: str) -> int:
    """Return the status of a page; like a kubelet, without a check of the certificate."""
    with urllib.request.urlopen(url, timeout=30, context=ssl._create_unverified_context()) as page:  # noqa: S310, S323 - a pod's own
        return int(page.status)


def secrets(keys: Path, names: Iterable[str]) -> Path:
    """What docs/how-to/deployment.md has made: keys, a certificate for all names, a token; a client's file with that token."""
    generate(keys / "gateway-keys", PODS)
    tls = keys / "gateway-tls"
    tls.mkdir()
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(tls / "tls.key"), "-out", str(tls / "tls.crt"), "-subj", "/CN=gateways"]
    alternatives = ["-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)]
    subprocess.run([*made, *files, *alternatives], check=True, capture_output=True)
    token = new_token()
    access = Access("orders", produce=("*",), read=("*",), sha256=digest_of(token))
    (keys / "gateway-tokens").mkdir()
    change_tokens(keys / "gateway-tokens/tokens.toml", lambda known: known.update(orders=access))
    client = keys / "client"
    client.touch(0o600)
    public = (keys / "gateway-keys/group.keys").read_text()
    client.write_text(f"token = \"{token}\"\ncertificates = '''{(tls / 'tls.crt').read_text()}'''\n{public}")
    return client


@pytest.mark.lab
@pytest.mark.soak
def test_the_commands_of_the_pods_found_a_working_group(tmp_path: Path) -> None:
    with Network(PODS) as network, ExitStack() as opened:
        names = {f"{pod}.gateways": network.addresses[pod] for pod in PODS} | {"gateway": network.addresses[PODS[0]]}
        credentials = secrets(tmp_path / "keys", names)
        running = []
        for pod in (Pod(name, network, tmp_path, names, opened) for name in PODS):
            [keys] = pod.spec["initContainers"]
            [container] = pod.spec["containers"]
            pod.box(keys).run(*pod.command(keys, "command"))
            box = pod.box(container)
            running.append((pod, container, box, box.start("tutti", *pod.command(container, "args"))))
        with stopping([process for *_, process in running]):
            for pod, container, box, process in running:
                assert ready(process, box)["url"] == f"tutti://{pod.name}.gateways:7400"
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    asked = container[probe]["httpGet"]
                    [port] = [port["containerPort"] for port in container["ports"] if port["name"] == asked["port"]]
                    url = f"{asked['scheme'].lower()}://{network.addresses[pod.name]}:{port}{asked['path']}"
                    assert network.call(pod.name, partial(answered, url)) == 200
            mounts = [Mount(credentials, "/keys/client"), Mount(None, "/tmp")]
            environment = {"TUTTI_TOKEN_FILE": "/keys/client", "TUTTI_URL": "tutti://gateway:7400"}
            client = opened.enter_context(Box(network, PODS[1], tmp_path / "client", mounts, names=names, environment=environment))
            client.run("tutti", "produce", "--topic", "orders", text="one\n")
            assert client.run("tutti", "tail", "--topic", "orders", "--format", "value") == "one\n"
