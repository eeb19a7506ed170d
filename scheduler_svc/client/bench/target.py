"""The server under load: what it is, and what it may be asked for."""

from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Literal

from scheduler_svc.client.bench.workload import BenchRequest
from scheduler_svc.client.errors import RequestFailed, ServiceNotReady
from scheduler_svc.client.http.api import Api
from scheduler_svc.client.service_address import ServiceAddress

Json = dict[str, Any]
Endpoint = Literal["completions", "chat"]
Server = Literal["baton", "vllm", "openai"]

_PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_OWNERS: dict[str, Server] = {"baton": "baton", "vllm": "vllm", "sglang": "vllm"}  # sglang knows ignore_eos as well
_TEMPERATURE = 0.6
_WARM_UP = BenchRequest("Benchmark: ", 16)


@dataclass(frozen=True)
class Target:
    """A model of a server.

    Attributes:
        server: whose API beyond OpenAI's it has: requests of `baton` can be resumed, and `baton` and `vllm` generate
            exactly as many tokens as they are told.
        vocab_size: where the server says so.
    """

    server: Server
    endpoint: Endpoint
    model: str
    vocab_size: int | None = None

    @property
    def path(self) -> str:
        """Where requests are posted."""
        return _PATHS[self.endpoint]

    @property
    def is_exact(self) -> bool:
        """Whether it generates as many tokens as it is told."""
        return self.server != "openai"

    def address(self, service: ServiceAddress) -> ServiceAddress:
        """How to reach it: other servers than Baton do not resume requests."""
        return service if self.server == "baton" else replace(service, reconnect_timeout_s=0.0)

    def body(self, request: BenchRequest) -> Json:
        """The body of a streamed request."""
        extra = {"ignore_eos": True} if self.is_exact else {}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return {**self._asked(request), "temperature": _TEMPERATURE, **extra, **streamed}

    def warm_up(self, api: Api) -> None:
        """Have one short request answered.

        Raises:
            RequestFailed, ServiceUnreachable: it was not.
        """
        api.complete(self.path, self._asked(_WARM_UP))

    def _asked(self, request: BenchRequest) -> Json:
        prompt: Json = {"prompt": request.prompt}
        if self.endpoint == "chat":
            prompt = {"messages": [{"role": "user", "content": request.prompt}]}
        return {"model": self.model, **prompt, "max_tokens": request.max_tokens}


def find_target(api: Api, server: Server | None, endpoint: Endpoint, model: str | None) -> Target:
    """Ask the server for what is not given: what it is, and its first model.

    Raises:
        ServiceNotReady: no model is given, and it lists none.
    """
    try:
        models = api.models()
    except RequestFailed as error:
        if model is None or error.status != HTTPStatus.NOT_FOUND:
            raise
        models = []  # some servers do not list theirs
    entry = next((entry for entry in models if model in (None, entry["id"])), models[0] if models else {})
    if model is None and not entry:
        raise ServiceNotReady("the service serves no model yet; name one by --model if it does not list them")
    found = server or _OWNERS.get(str(entry.get("owned_by")), "openai")
    return Target(found, endpoint, model or str(entry["id"]), entry.get("vocab_size"))
