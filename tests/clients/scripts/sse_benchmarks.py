"""The functions by which `vllm bench serve` and sglang's benchmark ask, from single files of their packages.

Started with `vllm` or `sglang` in the environment variable CLIENT; the packages themselves need CUDA's torch, and what
these files import of them is replaced by nothing.
"""

import argparse
import importlib.util
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import aiohttp
from report import HARBOR, DoesNotApply, equal, model, report, url

FOLDER = Path(sys.executable).parents[1] / "benchmarks"
OUTPUT_LEN = 40


class Nothing(types.ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name):
        return [] if name == "__path__" else MagicMock()


def load(path):
    """A file of a package, without the package."""
    spec = importlib.util.spec_from_file_location(path.stem, FOLDER / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


async def ask_vllm(endpoint, **more):
    functions = load(Path("vllm/benchmarks/lib/endpoint_request_func.py"))
    where = {"api_url": f"{url()}/{endpoint}", "model": model(), "prompt": HARBOR.prompt, "prompt_len": 8}
    asked = functions.RequestFuncInput(**{**where, "output_len": OUTPUT_LEN, **more})
    async with aiohttp.ClientSession() as session:
        answer = await functions.ASYNC_REQUEST_FUNCS["openai-chat" if "chat" in endpoint else "openai"](asked, session)
    return answer, answer.output_tokens


async def ask_sglang(endpoint, **more):
    for name in ("datasets", "datasets.mooncake", "goodput"):
        sys.modules[f"sglang.benchmark.{name}"] = Nothing(name)
    for name in ("sglang", "sglang.benchmark", "sglang.srt", "sglang.srt.disaggregation", "sglang.srt.utils"):
        sys.modules[name] = Nothing(name)
    for name in ("sglang.srt.disaggregation.utils", "sglang.srt.utils.network"):
        sys.modules[name] = Nothing(name)
    sys.modules["sglang.benchmark.utils"] = load(Path("sglang/benchmark/utils.py"))
    functions = load(Path("sglang/benchmark/serving.py"))
    functions.set_global_args(
        argparse.Namespace(
            **dict.fromkeys(("disable_stream", "disable_ignore_eos", "return_logprob", "cache_report"), False),
            top_logprobs_num=0,
            header=None,
            print_requests=False,
        )
    )
    prompt = [{"role": "user", "content": HARBOR.prompt}] if "chat" in endpoint else HARBOR.prompt
    where = {"api_url": f"{url()}/{endpoint}", "model": model(), "prompt": prompt, "prompt_len": 8}
    extra = {"stream_options": {"include_usage": True}} if "chat" in endpoint else {}
    asked = functions.RequestFuncInput(
        **{**where, "output_len": OUTPUT_LEN, "lora_name": "", "image_data": None, "extra_request_body": extra, **more}
    )
    answer = await functions.ASYNC_REQUEST_FUNCS["vllm-chat" if "chat" in endpoint else "vllm"](asked)
    return answer, answer.output_len


ASK = {"vllm": ask_vllm, "sglang": ask_sglang}[os.environ.get("CLIENT", "vllm")]


async def checked(endpoint, **more):
    """The text that the benchmark has read, once it has counted what it should."""
    answer, num_tokens = await ASK(endpoint, **more)
    if not answer.success:
        raise RuntimeError(answer.error)
    equal(num_tokens, OUTPUT_LEN)
    equal((answer.ttft > 0, len(answer.itl) > 5), (True, True))
    return answer.generated_text


async def completions():
    equal(bool(await checked("completions")), True)


async def chats():
    equal(HARBOR.plain.startswith(await checked("chat/completions")), True)


def not_there():
    raise DoesNotApply("a benchmark")


report(
    **{
        "plain": completions,
        "stream": chats,
        "usage": chats,
        **dict.fromkeys(
            ("tools", "tools_stream", "loop", "required", "schema", "json", "thinking", "logprobs", "killed"), not_there
        ),
    }
)
