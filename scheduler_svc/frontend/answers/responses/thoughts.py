"""Thoughts as `encrypted_content`: clients that keep a conversation by themselves send this back, and nothing else of a
thought. It is not secret, since the client may read the thought anyway; it is only not to be read by accident."""

import base64
import binascii

PREFIX = "bt1."


def sealed_thought(thought: str) -> str:
    """`encrypted_content` of a thought."""
    return PREFIX + base64.urlsafe_b64encode(thought.encode(errors="replace")).decode()


def opened_thought(sealed: str) -> str | None:
    """The thought again; None if this API has not written it."""
    if not sealed.startswith(PREFIX):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(PREFIX), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
