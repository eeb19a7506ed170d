"""Each event that the services log as a warning or an error stands in operations.md with its remedy, and no other."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests import ROOT

SERVICES = ("scheduler_svc", "executor_svc", "keeper_svc", "common")
LOGGERS = ("log", "_log")
LEVELS = ("warning", "error", "exception", "critical")
# Calls that make a line, or what makes lines later: where their event stands, and their level; None if it is a warning.
MAKERS = {"QuietLog": (1, None), "WriteLog": (1, 0), "log_line": (1, 0), "LogEvent": (0, 2)}
DEFAULT_LEVEL = {"LogEvent": "info"}
CARRIERS = {"ChildEvents": 0, "HelperEvents": 1}  # tuples of events, from which number on these are troubles
PASSED_ON = ("self._event", "line.event")  # where what was made elsewhere is written
GUIDE = (ROOT / "docs" / "operations.md").read_text()
ROW = re.compile(r"^\| [\w, ]+ \| (`.*?) \| (.+) \| (.+) \|$", re.MULTILINE)


class Module:
    """The events that one file logs as warnings or errors."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        self.around: dict[ast.Call, list[ast.FunctionDef]] = {call: [] for call in self.calls}
        for function in ast.walk(self.tree):
            for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
                if isinstance(node, ast.Call):
                    self.around[node].append(function)

    def events(self) -> Iterator[str]:
        for call in self.calls:
            name = _last_name(call.func)
            if name in CARRIERS:
                yield from (event for each in call.args[CARRIERS[name] :] for event in self.texts(each, call))
            elif isinstance(call.func, ast.Attribute) and name in LEVELS and _last_name(call.func.value) in LOGGERS:
                yield from self.texts(call.args[0], call)
            elif ast.unparse(call.func) == "super().__init__" and [*map(_last_name, call.args[:1])] == ["log"]:
                yield from self.texts(call.args[1], call)  # of a QuietLog
            elif name in MAKERS and self._is_trouble(name, call):
                yield from self.texts(call.args[MAKERS[name][0]], call)

    def _is_trouble(self, name: str, call: ast.Call) -> bool:
        place = MAKERS[name][1]
        if place is None:
            return True
        if len(call.args) <= place:
            return DEFAULT_LEVEL[name] in LEVELS
        return any(level in LEVELS for level in self.texts(call.args[place], call))

    def texts(self, node: ast.expr, call: ast.Call) -> list[str]:
        """All texts that an expression in a call may have."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.texts(body, call), *self.texts(orelse, call)]
            case ast.Name(id=name) if assigned := self._assigned(name, call):
                return [text for value in assigned for text in self.texts(value, call)]
            case _ if ast.unparse(node) in PASSED_ON or ast.unparse(node).startswith("self._events."):
                return []
        raise AssertionError(f"line {node.lineno}: nobody can tell what {ast.unparse(node)} says")

    def _assigned(self, name: str, call: ast.Call) -> list[ast.expr]:
        """What a name was given: in an assignment, or as an argument of the function that the call stands in."""
        found: list[ast.expr] = []
        around = self.around[call]
        for node in [*self.tree.body, *(node for function in around for node in ast.walk(function))]:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in map(ast.unparse, targets) and node.value:
                found.append(node.value)
        for function in around:
            parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
            if name in parameters:
                place = parameters.index(name)
                callers = [each for each in self.calls if _last_name(each.func) == function.name]
                found += [text for each in callers for text in self._argument(each, place)]
        return found

    def _argument(self, call: ast.Call, place: int) -> list[ast.expr]:
        argument = call.args[place]
        if isinstance(argument, ast.Name):
            return self._assigned(argument.id, call) or [argument]
        return [argument]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def logged() -> set[str]:
    """Events of all services' code; not of the client, whose words are for people at a terminal."""
    paths = [path for service in SERVICES for path in (ROOT / service).rglob("*.py") if "client" not in path.parts]
    paths.remove(ROOT / "scheduler_svc" / "core" / "actions.py")  # where `log_line` is
    return {event for path in paths for event in Module(path.read_text()).events()}


def test_other_lines_are_those_of_the_code():
    texts = "".join(path.read_text() for service in SERVICES for path in (ROOT / service).rglob("*.py"))
    section = GUIDE[GUIDE.index("### Other lines") : GUIDE.index("## Limits")]
    events = [
        event
        for row in re.findall(r"^\| [\w, ]+ \| (`.*?) \|", section, re.MULTILINE)
        for event in re.findall(r"`(.*?)`", row)
    ]
    assert len(events) > 20
    made = {"frontend started", "worker started"}  # of the name of what serves
    assert {event for event in events if f'"{event}"' not in texts} == made


def listed() -> dict[str, str]:
    """The remedy of each event in the table."""
    section = GUIDE[GUIDE.index("### Warnings and errors") : GUIDE.index("## Limits")]
    table = section[: section.index("\n### ", 4)]
    return {event: remedy for events, _, remedy in ROW.findall(table) for event in re.findall(r"`(.*?)`", events)}


def test_each_warning_and_error_has_a_remedy():
    assert sorted(logged()) == sorted(listed())
    assert all(listed().values())


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ('log.warning("a", x=1)', ["a"]),
        ('self._log.error("a" if x else "b")', ["a", "b"]),
        ('log.info("a")', []),
        ('talk.error("a")', []),
        ('QuietLog(log, "a")', ["a"]),
        ('log_line("info", "a"), log_line("error", "b")', ["b"]),
        ('level = "info" if x else "error"\nWriteLog(level, "a", {})', ["a"]),
        ('LogEvent("a", {}), LogEvent("b", {}, "warning")', ["b"]),
        ('NOT = "a"\nclass A:\n def f(self, said):\n  log.error(said)\n def g(self): self.f(NOT)', ["a"]),
        ('HelperEvents("a", "b", "c")', ["b", "c"]),
    ],
)
def test_events_are_found_however_they_are_written(text, events):
    assert list(Module(text).events()) == events


def test_an_event_that_nobody_can_list_is_refused():
    with pytest.raises(AssertionError, match=r"nobody can tell what f'a \{b\}' says"):
        list(Module('log.error(f"a {b}")').events())
