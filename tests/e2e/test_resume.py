"""The scheduler is killed in the middle of answers; `baton up` starts it again, and every client gets what it would
have got: the same text, each piece of it once."""

import json
import signal

import pytest

from tests.e2e.service import Service, output_of, read, read_until
from tests.support.eventually import eventually

PROMPT = "JULIET:\nO Romeo, Romeo! "
NUM_TOKENS = 300  # seconds of work, so that the second kill finds answers in progress
SEEDED = ("--temperature", "0.8", "--seed", "42", "--top-k", "40")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running


def generate(*options):
    return ("generate", PROMPT, "--max-tokens", NUM_TOKENS, "--ignore-eos", *options)


def batch(folder, out):
    """A batch of six lines, sent one by one: of a batch that the service runs, few lines are open beside others."""
    path = folder / "in.jsonl"
    with path.open("w") as lines:
        for i in range(6):
            body = {"prompt": f"The {i}th time I say, ", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
            line = {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
            lines.write(json.dumps(line) + "\n")
    return ("batch", "--direct", path, folder / out)


BENCH = ("bench", "--num-seqs", 4, "--max-prompt", 100, "--max-output", 500, "--json")
NUM_SEQUENCES = {"greedy": 1, "seeded": 1, "whole": 1, "two answers": 2, "batch": 6, "bench": 4}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_everything_goes_on_where_it_broke_off(service, tmp_path):
    """Requests of every kind are in progress when the scheduler is killed, and killed again when they go on."""
    commands = {
        "greedy": generate("--temperature", "0"),
        "seeded": generate(*SEEDED),
        "whole": generate("--json", *SEEDED),
        "two answers": generate("--n", 2, *SEEDED),
        "batch": batch(tmp_path, "undisturbed.jsonl"),
        "bench": BENCH,
    }
    processes = {name: service.start(*command) for name, command in commands.items()}
    undisturbed = {name: output_of(process) for name, process in processes.items()}
    commands["batch"] = batch(tmp_path, "disturbed.jsonl")

    processes = {"bench": service.start(*commands.pop("bench"))}
    service.wait_for_sequences(NUM_SEQUENCES["bench"])  # it has had the answer to its first short request
    with service.executors_frozen():  # a quick machine would have answered before the last command has started
        processes |= {name: service.start(*command) for name, command in commands.items()}
        service.wait_for_sequences(sum(NUM_SEQUENCES.values()))
    begun = read(processes["greedy"], 1)
    service.kill_scheduler()
    said = {name: read_until(processes[name].stderr, "the service is back") for name in ("greedy", "seeded")}
    service.kill_scheduler()
    outages = {"greedy": 2, "seeded": 2, "batch": 0}  # a batch counts its retries
    disturbed = {
        name: output_of(process, outages=outages.get(name, 1), said=said.get(name, ""))
        for name, process in processes.items()
    }
    disturbed["greedy"] = begun + disturbed["greedy"]
    for name in ("greedy", "seeded", "two answers"):
        assert disturbed[name] == undisturbed[name], name
    assert answer(disturbed["whole"]) == answer(undisturbed["whole"])
    assert results(tmp_path / "disturbed.jsonl") == results(tmp_path / "undisturbed.jsonl")
    assert tokens(disturbed["bench"]) == tokens(undisturbed["bench"])


def answer(stdout):
    """What an undisturbed and a disturbed answer have in common: not the id, nor what was in the prefix cache."""
    found = json.loads(stdout)
    return found["text"], found["choices"], found["model"], found["usage"]["completion_tokens"]


def results(path):
    """The same for a batch's lines."""
    found = {}
    for line in map(json.loads, path.read_text().splitlines()):
        assert line["error"] is None
        body = line["response"]["body"]
        found[line["custom_id"]] = (body["choices"], body["model"], body["object"], body["usage"]["completion_tokens"])
    return found


def tokens(stdout):
    report = json.loads(stdout)
    return report["num_failed"], report["prompt_tokens"], report["output_tokens"]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_ctrl_c_leaves_nothing_running(service):
    """Although the request could be resumed: no client will come back for it."""
    process = service.start("generate", PROMPT, "--max-tokens", 1500, "--ignore-eos")
    read(process, 40)
    assert service.status()["running"] == 1
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    # Within far less time than the scheduler waits for a client that may come back.
    eventually(lambda: not service.status()["running"], 5)
