"""The functions by which `vllm bench serve` and sglang's benchmark ask, from files of their packages.

Started with the name of one of them; the packages themselves bring CUDA's torch.
"""

import asyncio
import importlib.util
import sys
import types
from pathlib import Path

import aiohttp
from report import HARBOR, LEDGER, DoesNotApply, equal, model, report, url

FOLDER = Path(sys.executable).parents[1] / "benchmarks"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


async def vllm(endpoint, **more):
    functions = load(FOLDER / "vllm/benchmarks/lib/endpoint_request_func.py")
    asked = functions.RequestFuncInput(
        prompt=HARBOR.prompt,
        api_url=f"{url()}/{endpoint}",
        prompt_len=8,
        output_len=40,
        model=model(),
        **more,
    )
    async with aiohttp.ClientSession() as session:
        ask = functions.ASYNC_REQUEST_FUNCS["openai-chat" if "chat" in endpoint else "openai"]
        answer = await ask(asked, session)
    if not answer.success:
        raise RuntimeError(answer.error)
    equal(answer.output_tokens, 40)
    equal((answer.ttft > 0, len(answer.itl) > 5), (True, True))
    return answer.generated_text


async def chats():
    equal(HARBOR.plain.startswith(await vllm("chat/completions")), True)


async def completions():
    equal(await vllm("completions", ignore_eos=True), " la" * 40)


def not_there():
    raise DoesNotApply("a benchmark")


if __name__ == "__main__":
    report({"plain": completions, "stream": chats, "usage": chats})
