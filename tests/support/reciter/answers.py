"""What the reciter says to whom. Client scripts and benchmarks ask these prompts."""

import json
from dataclasses import dataclass
from typing import Any

END = "<|im_end|>"


def call(function: str, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    text = json.dumps({"name": function, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


@dataclass(frozen=True)
class Answer:
    """What the reciter says to prompts that hold a word.

    Attributes:
        word: with its space, one token; the last such word of a conversation counts.
        prompt: a user message that has it.
        plain: the answer where no tools are shown. Texts may begin with a thought.
        tools: the answer where tools are shown.
        result: the answer once the results of tools are there.
        forced: what else may be written where tools are shown, if a grammar does not let `tools` be.
    """

    word: str
    prompt: str
    plain: str
    tools: str = ""
    result: str = ""
    forced: str = ""


def thought(text: str, answer: str) -> str:
    """A thought and what comes after it."""
    return f"<think>\n{text}\n</think>\n\n{answer}"


OSLO = call("get_weather", city="Oslo")
PERSON = '{"name": "Ada", "age": 36}'
MINUTES = (
    "Minutes of the second meeting\n\n"
    '1. Mrs. Okafor read the accounts: 1,204.50 in hand, "a little more than last year", and no debts.\n'
    "2. It was agreed to paint the boathouse before winter, in green, and to mend its roof with slate.\n"
    "3. A path C:\\boats\\new and the word naïve were spelled out for the printer, as was 東京.\n"
    "There being nothing else to discuss, all went home at three o'clock."
)
PATCH = "\n".join(
    ["*** Begin Patch", "*** Add File: list.txt", *(f"+{line}" for line in MINUTES.splitlines()), "*** End Patch"]
)
ANSWERS = (
    Answer(
        " harbor",
        "Tell me of the harbor.",
        plain="Boats come in at dawn, when the tide allows it: trawlers first, then two ferries. Gulls follow them — "
        "loudly 🐟. By nine o'clock everything is sold, and the quay smells of salt, rope and coffee (港).",
        forced=OSLO,
    ),
    Answer(
        " ledger",
        "Write the minutes into the ledger.",
        plain=thought("There is no file that I could write.", "I have nowhere to write them."),
        tools=thought(
            "The user wants a file. I know the path, so I can write it at once.",
            call("write_file", path="club/minutes.txt", content=MINUTES),
        ),
        result="The minutes are written.",
    ),
    Answer(
        " lantern",
        "How warm is it by the lantern?",
        plain=thought("Without a thermometer I cannot know.", "I cannot know that."),
        tools=thought("The weather of Oslo is asked for.", OSLO),
        result=thought("The result is there.", "It is 18 degrees in Oslo."),
    ),
    Answer(
        " islands",
        "Compare both islands.",
        plain="I cannot compare what I do not see.",
        tools=f"I will ask for both.\n{OSLO}\n{call('get_weather', city='Bergen')}",
        result="Oslo has 18 degrees, Bergen 14.",
    ),
    Answer(" ferry", "Who steers the ferry? Answer in JSON.", plain=PERSON, tools=PERSON),
    Answer(
        " captain",
        "Think of the captain, then answer in JSON.",
        plain=thought("A person is wanted, with an age.", PERSON),
        tools=thought("A person is wanted, with an age.", PERSON),
    ),
    Answer(" whale", "Is a whale a fish?", plain=thought("It breathes air and feeds its young.", "No, a mammal.")),
    Answer(
        " telescope",
        "What does the telescope show?",
        plain="Stars.",
        tools=OSLO,
        result=call("final_answer", answer="18 degrees"),
    ),
    Answer(" compass", "Who holds the compass?", plain=PERSON, tools=call("final_result", name="Ada", age=36)),
    Answer(" anchor", "Who lifts the anchor?", plain=PERSON, tools=call("Person", name="Ada", age=36)),
    Answer(
        " beacon",
        "Write down who keeps the beacon.",
        plain="I have no paper.",
        tools=thought("A command of the shell can write it.", call("exec_command", cmd="echo Ada > keeper.txt")),
        result="It is written down.",
    ),
    Answer(
        " cargo",
        "Add the list of the cargo.",
        plain="I have no list.",
        tools=thought("A patch adds the file.", call("apply_patch", input=PATCH)),
        result="The list is there.",
    ),
    Answer(
        " sailor",
        "Send the sailor home.",
        plain="There is none.",
        tools=call("multi_agent_v1.close_agent", target="Ada"),
        result="There was no such agent.",
    ),
)
WITHOUT_WORD = Answer("", "Hello!", plain=thought("No word that I know.", "I only recite."), forced=OSLO)
SHOWN = " signatures"
"""The token of the chat template that says that tools are shown."""
RESULTS = ("</tool_response>", "Observ")
"""Tokens that say that a tool's result has come: the template's, and the word of agents that write results as text."""
