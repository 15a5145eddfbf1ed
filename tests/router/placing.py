"""A placement with replicas that answer as a test says, and bodies to ask it for."""

import json

from kvikk.router.placement.aware import AwarePlacement
from kvikk.router.placement.options import PlacementOptions
from kvikk.router.proxy.placement import Asked, Outcome, Reported
from kvikk.router.records import Decision, ReplicaView, RoutedRequest

LONG = "A policy for everybody who reads this carefully. " * 40


def asked(body: object, number: int = 0, salt: bytes = b"", path: str = "", **headers) -> Asked:
    value = body if isinstance(body, dict) else None
    return Asked(
        f"request-{number}",
        path or "/v1/chat/completions",
        value.get("model", "m") if value else "m",
        "tenant",
        salt,
        json.dumps(body).encode(),
        value,
        {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()},
    )


def chat(*texts: str, **more: object) -> dict:
    roles = ["system", *["user", "assistant"] * len(texts)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"model": "m", "messages": messages, **more}


class Fleet:
    """A placement with replicas that answer as the test says."""

    def __init__(self, count: int = 3, **options) -> None:
        self.placement = AwarePlacement(PlacementOptions(**options))
        self.views = [ReplicaView(f"replica{slot}", slot) for slot in range(count)]
        self.number = 0
        for view in self.views:
            self.placement.joined(view, f"http://replica{view.slot}")

    def send(self, body: dict, **more) -> tuple[RoutedRequest, Decision]:
        self.number += 1
        question = asked(body, self.number, **more)
        foreseen = self.placement.foresee(question, self.views, ())
        request = self.placement.read(question)
        decision = self.placement.decide(request, self.views, ())
        assert foreseen is None or foreseen is decision.replica
        return request, decision

    def ask(self, body: dict, cached: int | None = None, **more) -> Decision:
        """One request from start to end; it reuses what was predicted unless told otherwise."""
        request, decision = self.send(body, **more)
        hit = decision.hit_tokens if cached is None else cached
        outcome = Outcome(200, "", 0.1, 0.2, Reported(request.prompt_tokens, hit, 5))
        self.placement.answered(request, decision, outcome)
        return decision

    def fleet(self) -> dict:
        return json.loads(self.placement.page("/v1/kvikk/fleet")[1])
