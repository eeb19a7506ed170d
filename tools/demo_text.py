"""The demo model's training text: the play's speeches, and the chats that are made of them."""

import random
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Speech:
    """One character's lines, without the name above them in the play."""

    speaker: str
    text: str


def split_text(text: str) -> tuple[str, str]:
    """Cut into training text and the held-out last 10 %, between two speeches so that neither gets half of one."""
    cut = text.index("\n\n", int(len(text) * 0.9)) + 2
    return text[:cut], text[cut:]


def parse_speeches(text: str) -> list[Speech]:
    """List the speeches in order: blocks between blank lines whose first line is `NAME:`."""
    blocks = (re.fullmatch(r"([^\n:]+):\n(.+)", block.strip(), re.DOTALL) for block in text.split("\n\n"))
    return [Speech(match[1], match[2]) for match in blocks if match]


def make_conversation(speeches: list[Speech], rng: random.Random) -> list[dict[str, str]]:
    """Turn a random spot of the play into a chat: one speech asks, the next answers, in up to three exchanges.

    The chat continues only while the same character answers. Half of the chats open with a system turn that names the
    character, so that the model learns what `You are ROMEO.` means.
    """
    start = rng.randrange(len(speeches) - 1)
    character = speeches[start + 1].speaker
    messages = [{"role": "system", "content": f"You are {character}."}] if rng.random() < 0.5 else []
    for i in range(start, min(start + 2 * rng.randint(1, 3), len(speeches) - 1), 2):
        if speeches[i + 1].speaker != character:
            break
        messages.append({"role": "user", "content": speeches[i].text})
        messages.append({"role": "assistant", "content": speeches[i + 1].text})
    return messages
