"""Parameters of other servers that are not built here. Clients send many of them with the value that turns them off:
that one is accepted, and any other is refused. Where a parameter changes no token, every value is accepted."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from scheduler_svc.frontend.requests.fields import Only
from scheduler_svc.frontend.requests.strict import Strict


class _NoThread(Only):
    """Refuses a conversation that the server should hold, by the code that makes Anthropic's clients send all of it."""

    def __call__(self, value: Any) -> Any:
        """No value is allowed."""
        raise PydanticCustomError(
            "thread_unsupported_request", "no conversation is held here: send all of its messages"
        )


Null = Annotated[Any, AfterValidator(Only())]
False_ = Annotated[Any, AfterValidator(Only(False))]


class OffForAll(Strict):
    """Those of both endpoints."""

    use_beam_search: False_ = None
    length_penalty: Annotated[Any, AfterValidator(Only(1.0))] = None
    early_stopping: False_ = None
    truncate_prompt_tokens: Null = None
    detokenize: Annotated[Any, AfterValidator(Only(True))] = None
    return_tokens_as_token_ids: False_ = None
    return_token_ids: False_ = None
    return_hidden_states: False_ = None
    logits_processors: Annotated[Any, AfterValidator(Only([]))] = None
    kv_transfer_params: Null = None
    vllm_xargs: Annotated[Any, AfterValidator(Only({}))] = None
    lora_path: Null = None

    # No token depends on them.
    spaces_between_special_tokens: bool | None = None  # texts of byte-level tokens have no spaces of their own
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    cache_prompt: bool | None = None  # llama.cpp's
    keep_alive: str | float | None = None  # Ollama's: the model stays loaded


class OffForChats(Strict):
    """Those of chats."""

    echo: False_ = None
    add_special_tokens: False_ = None
    best_of: Annotated[Any, AfterValidator(Only(1))] = None
    modalities: Annotated[Any, AfterValidator(Only(["text"]))] = None
    audio: Null = None
    prediction: Null = None
    web_search_options: Null = None
    documents: Annotated[Any, AfterValidator(Only([]))] = None
    chat_template: Null = None
    mm_processor_kwargs: Annotated[Any, AfterValidator(Only({}))] = None

    # A hint for models that know of it: no template here shows it.
    verbosity: Literal["low", "medium", "high"] | None = None


class OffForCompletions(Strict):
    """Those of completions."""

    suffix: Annotated[Any, AfterValidator(Only(""))] = None
    prompt_embeds: Null = None


class OffForMessages(Strict):
    """Those of Anthropic's messages."""

    container: Null = None
    mcp_servers: Annotated[Any, AfterValidator(Only([]))] = None
    inference_geo: Null = None
    speed: Annotated[Any, AfterValidator(Only("standard"))] = None
    thread: Annotated[Any, AfterValidator(_NoThread())] = None

    # No token depends on them.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None  # what is cached is what was computed
    diagnostics: dict[str, Any] | None = None
