"""Manifests and container file: valid by the schemas of Kubernetes, confined, and as we parse."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import typer.main
import yaml

from kvikk.cli.main import app
from kvikk.engine.options import EngineOptions
from kvikk.router.placement.options import ANY, parse_event_source
from kvikk.router.proxy.origin import parse_origin
from kvikk.server.options import ServerOptions
from tests.ports import free_port
from tests.router.live import wait_for
from tests.server import live

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(DEPLOY.glob("kubernetes/**/*.yaml"))
ENGINES = ["vllm", "kvikk"]


def manifests(*folders: str) -> list[dict[str, Any]]:
    """What is applied together."""
    paths = [
        path
        for folder in ("", *folders)
        for path in (DEPLOY / "kubernetes" / folder).glob("*.yaml")
    ]
    return [one for path in sorted(paths) for one in yaml.safe_load_all(path.read_text())]


def found(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (one,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return one


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        one["spec"]["template"] for one in objects if one["kind"] in ("Deployment", "StatefulSet")
    ]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What our own command line makes of a container's arguments; exits for what it refuses."""
    command: Any = typer.main.get_command(app)
    with command.make_context("kvikk", list(arguments), resilient_parsing=False) as context:
        name, verb, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        with verb.make_context(name, rest, parent=context) as parsed_context:
            return {"verb": name, **parsed_context.params}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_manifest_is_valid_by_the_schemas_of_kubernetes(path: Path) -> None:
    for one in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(one, "1.37", strict=True)


def test_the_validation_is_one_that_refuses() -> None:
    service = found(manifests("kvikk"), "Service", "engines")
    service["spec"]["clusterIp"] = "None"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, "1.37", strict=True)


@pytest.mark.parametrize("engines", ENGINES)
def test_every_container_is_confined_and_bounded(engines: str) -> None:
    """As the namespace demands: Kubernetes' "restricted" standard, and more."""
    objects = manifests(engines)
    labels = found(objects, "Namespace", "kvikk")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {one["metadata"]["namespace"] for one in objects if one["kind"] != "Namespace"} == {
        "kvikk"
    }
    for pod in pods(objects):
        assert pod["spec"]["automountServiceAccountToken"] is False
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"]["type"] == "RuntimeDefault"
        for container in containers(pod):
            confined = container["securityContext"]
            assert confined["allowPrivilegeEscalation"] is False
            assert confined["readOnlyRootFilesystem"]
            assert confined["capabilities"] == {"drop": ["ALL"]}
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys()
            assert "memory" in resources["limits"]
            assert not container["image"].endswith(":latest")
        for container in pod["spec"]["containers"]:
            assert {"readinessProbe", "livenessProbe"} <= container.keys()
            preparing_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            drain_s = parsed(container["args"])["drain"] if "kvikk" in container["image"] else 60
            assert pod["spec"]["terminationGracePeriodSeconds"] > preparing_s + drain_s


@pytest.mark.parametrize("engines", ENGINES)
def test_keys_come_from_one_secret_and_stand_in_no_manifest(engines: str) -> None:
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    made = set(re.findall(r"--from-literal=([a-z]+)=", page))
    used = set()
    for pod in pods(manifests(engines)):
        for container in containers(pod):
            for variable in container.get("env", []):
                if "KEY" in variable["name"]:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["name"] == "keys"
                    used.add(reference["key"])
    assert used == made == {"callers", "admin", "engines"}


@pytest.mark.parametrize("engines", ENGINES)
def test_names_and_ports_fit_together(engines: str) -> None:
    objects = manifests(engines)
    router = found(objects, "Deployment", "router")["spec"]["template"]
    engine = found(objects, "StatefulSet", "engine")["spec"]["template"]
    for service, pod in (("router", router), ("engines", engine)):
        selector = found(objects, "Service", service)["spec"]["selector"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        policy = {"router": "router", "engines": "engines"}[service]
        spec = found(objects, "NetworkPolicy", policy)["spec"]
        assert spec["podSelector"]["matchLabels"] == selector
        (rule,) = spec["ingress"]
        opened = {port["port"] for port in rule["ports"]}
        assert opened == {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert found(objects, "Service", "engines")["spec"]["clusterIP"] == "None"
    budget = found(objects, "PodDisruptionBudget", "router")["spec"]
    assert budget["selector"]["matchLabels"].items() <= router["metadata"]["labels"].items()

    route = parsed(router["spec"]["containers"][0]["args"])
    assert route["verb"] == "route"
    (name,) = route["replica_dns"]
    origin = parse_origin(name)
    assert origin.host == found(objects, "Service", "engines")["metadata"]["name"]
    ports = {
        port["name"]: port["containerPort"] for port in engine["spec"]["containers"][0]["ports"]
    }
    assert origin.port == ports["http"]
    (events,) = route["kv_events"]
    url, source = parse_event_source(events)
    assert url == ANY
    assert source.at("10.1.2.3") == (
        f"tcp://10.1.2.3:{ports['kv-events']}",
        f"tcp://10.1.2.3:{ports['kv-replay']}",
    )


def test_our_engine_s_command_line_is_one_that_we_take() -> None:
    engine = found(manifests("kvikk"), "StatefulSet", "engine")["spec"]["template"]["spec"]
    serve = parsed(engine["containers"][0]["args"])
    assert (serve["verb"], serve["port"], serve["host"]) == ("serve", 8000, "0.0.0.0")
    assert (serve["kv_events"], serve["kv_events_replay"]) == ("tcp://*:5557", "tcp://*:5558")


def test_vllm_is_told_to_publish_in_the_words_that_were_tried_with_it() -> None:
    """As `benchmarks/vllm_events.py` starts it; its own parser needs a GPU's worth of packages."""
    arguments = found(manifests("vllm"), "StatefulSet", "engine")["spec"]["template"]["spec"][
        "containers"
    ][0]["args"]
    config = json.loads(arguments[arguments.index("--kv-events-config") + 1])
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
    }


def test_the_container_file_has_nothing_to_be_said_about() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run([hadolint, DEPLOY / "Containerfile"], check=True)


@contextmanager
def routed(arguments: list[str], environment: dict[str, str]) -> Iterator[str]:
    """The router of these arguments, and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvikk", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if listening := re.match(r"listening on (http://\S+)", line):
                break
        else:
            raise AssertionError("the router did not start")
        yield listening[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_the_router_s_arguments_find_an_engine_by_name_and_hear_what_it_holds(
    tiny_model: Path,
) -> None:
    """Only names, ports and the model are others than in the cluster."""
    router = found(manifests("kvikk"), "Deployment", "router")["spec"]["template"]["spec"]
    port, events, replay = free_port(), free_port(), free_port()
    changes = {
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--port=8080": "--port=0",
        "engines:8000": f"localhost:{port}",
        ":5557": f":{events}",
        ":5558": f":{replay}",
        "Qwen/Qwen3-8B": str(tiny_model),
        "--access-log=-": "--health-interval=0.1",
    }
    arguments = router["containers"][0]["args"]
    for old, new in changes.items():
        assert any(old in one for one in arguments)
        arguments = [one.replace(old, new) for one in arguments]
    options = ServerOptions(
        EngineOptions(str(tiny_model), backend="reference", kv_memory_bytes=32 << 20),
        port=port,
        api_keys=("for the engines",),
        kv_events=f"tcp://*:{events}",
        kv_events_replay=f"tcp://*:{replay}",
    )
    keys = {
        "KVIKK_ROUTER_API_KEYS": "a-callers another-callers",
        "KVIKK_ROUTER_ADMIN_KEY": "the-admins",
        "KVIKK_ROUTER_REPLICA_KEY": "for the engines",
    }
    with (
        live.start(options),
        routed(arguments, keys) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        wait_for(lambda: http.get("/healthz").status_code == 200)
        admin = {"authorization": "Bearer the-admins"}

        def replica() -> dict[str, Any]:
            (one,) = http.get("/v1/kvikk/fleet", headers=admin).json()["replicas"]
            return one

        body = {"model": "tiny", "prompt": list(range(1000, 1100)), "max_tokens": 2}
        assert http.post("/v1/completions", json=body).status_code == 401
        caller = {"authorization": "Bearer a-callers"}
        assert http.post("/v1/completions", json=body, headers=caller).status_code == 200
        wait_for(lambda: replica()["source"] == "events")
        wait_for(lambda: replica()["held_blocks"] == 3)
        again = http.post("/v1/completions", json=body, headers=caller)
        assert again.headers["x-kvikk-route"].endswith("hit=96")
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
