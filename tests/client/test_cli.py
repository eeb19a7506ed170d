"""The command as a whole: help that costs nothing, errors in one line, exit codes."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import COMMANDS, main
from scheduler_svc.client.processes.local_fleet import free_ports
from tests.client.fake_server import Refuse

HEAVY = ("httpx", "rich", "numpy", "fastapi", "zmq", "torch", "msgspec", "asyncio")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    code = f"""
import sys
from scheduler_svc.client.cli import main
main({arguments!r}, standalone_mode=False)
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_and_the_exit_codes(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"baton {name}" in result.output.split("Example:")[1]
    assert "Exit codes:" in result.output
    assert COMMANDS[name] in " ".join(result.output.split()), "the group's help says what the command's says"


def test_group_help_lists_every_command():
    result = CliRunner().invoke(main, ["--help"])
    assert [line.split()[0] for line in result.output.split("Commands:\n")[1].split("\n\n")[0].splitlines()] == list(
        COMMANDS
    )


@pytest.mark.parametrize("name", ["serve", "run", "pull", "list"])
def test_commands_of_others_are_answered_with_ours(name):
    result = CliRunner().invoke(main, [name, "qwen3:0.6b"])
    assert (result.exit_code, f"No such command '{name}': baton " in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["generate", "hi", "--url", "ftp://host"], ["generate", "hi", "--top-p", "2"], ["batch", "in"]],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments):
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["generate"], ["generate", "--model", "m"], ["chat"], ["status"], ["bench"], ["drain", "a"], ["rollout"]],
    ids=" ".join,
)
def test_unreachable_service_is_3_and_says_what_to_do(arguments):
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    result = CliRunner().invoke(main, [*arguments, "--url", url], input="hi")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"Error: no service answers at {url}")
    assert "baton up" in result.stderr
    assert result.stderr.count("\n") == 1


def test_not_ready_is_3_and_shows_the_message(baton, server):
    server.script.append(Refuse(503, "no executor is ready"))
    result = baton("generate", "hi", "--reconnect-timeout", 0)
    assert (result.exit_code, result.stderr) == (3, "Error: no executor is ready (HTTP 503)\n")


def test_an_error_answer_is_1_and_shows_the_message(baton, server):
    server.script.append(Refuse(400, "prompt has 9000 tokens, the model takes 8192"))
    result = baton("generate", "hi")
    assert result.exit_code == 1
    assert result.stderr == "Error: prompt has 9000 tokens, the model takes 8192 (HTTP 400)\n"


def test_api_key_and_model_go_with_the_request(baton, server):
    assert baton("generate", "hi", "--api-key", "secret", "--model", "other").exit_code == 0
    assert server.requests[0]["authorization"] == "Bearer secret"
    assert server.requests[0]["model"] == "other"


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_a_url_with_v1_is_that_of_the_service(baton, server, end):
    assert baton("generate", "hi", "--url", server.url + end).exit_code == 0
    assert [request["path"] for request in server.requests] == ["/v1/completions"]


def test_a_missing_key_is_1_and_names_the_options(baton, server):
    server.script.append(Refuse(401, "Invalid API key."))
    result = baton("generate", "hi")
    hint = "give an API key in BATON_API_KEY (or --api-key, which other users can see)"
    assert (result.exit_code, result.stderr) == (1, f"Error: Invalid API key. (HTTP 401); {hint}\n")


def test_a_proxy_for_the_world_is_not_asked_for_this_machine(baton, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert baton("generate", "hi").exit_code == 0
