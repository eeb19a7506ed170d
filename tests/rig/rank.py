"""One rank of an executor of two, started by torchrun: `test_ranks.py` looks at what it leaves in `$RIG_COLLECTIVES`.

python -m tests.rig.rank CHECKPOINT ATTENTION [FAULT]     # rank 1 has the fault
"""

import json
import os
import random
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from llguidance import LLMatcher

from common.plan import ExecutorLimits
from executor_svc.options import ExecutorOptions
from executor_svc.runner.group_runner import GroupLeader, run_in_group
from executor_svc.startup import start_executor
from tests.rig import build
from tests.rig.drive import random_plans, serve
from tests.rig.faults import plant
from tests.rig.stand_in import StandIn

STEPS = 60


def main() -> None:
    """Start, serve some steps, leave."""
    folder, attention, *fault = sys.argv[1:]
    torch.cuda.init()
    rig = StandIn(build.libraries() / "librig.so")
    with plant(fault[0]) if fault and os.environ["RANK"] == "1" else nullcontext():
        exit_code = serve_and_leave(rig, folder, attention)
    sys.exit(exit_code)


def serve_and_leave(rig: StandIn, folder: str, attention: str) -> int:
    """Be a rank for some steps, and write what came of it."""
    options = ExecutorOptions(
        model=folder,
        device="cuda",
        attention=attention,
        max_num_seqs=8,
        max_batch_tokens=128,
        max_model_len=512,
        kv_cache_memory_gib=0.25,
    )
    executor = start_executor(options)
    runner, hello, group = executor.runner, executor.hello, executor.group
    # Half of them ask for more than tokens.
    grammar = LLMatcher.grammar_from_regex("(?s:.)*") if hello.grammars else ""
    plans = random_plans(ExecutorLimits.of(hello), random.Random(1), grammar=grammar)

    def serve_steps(leader: GroupLeader) -> int:
        with rig.schedule("random"), rig.serving():
            serve(leader, plans, STEPS)  # type: ignore[arg-type]
        return 0

    exit_code = run_in_group(runner, group, serve_steps)
    report = {"exit_code": exit_code, "hazards": rig.take_hazards(), "counts": rig.counts(), "blocks": hello.num_blocks}
    (Path(os.environ["RIG_COLLECTIVES"]) / f"report{group.rank}.json").write_text(json.dumps(report))
    return exit_code


if __name__ == "__main__":
    main()
