"""Images and other media in the history of a model that reads texts.

A client sends its whole conversation with each request. An image that a tool read, or that another model was shown,
would end the conversation for good if it were refused: nobody can take it back. So it is replaced by a line that says
so. What stands in a user's last message is not: that request is refused, and the user learns why. The next request may
have the refused image before its last message, so it does not end the conversation either.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from scheduler_svc.frontend.requests.ignored import IgnoredNames

MEDIA: Mapping[str, str] = {
    **dict.fromkeys(("image_url", "input_image", "image"), "image"),
    **dict.fromkeys(("input_audio", "audio", "audio_url"), "sound"),
    **dict.fromkeys(("video_url", "input_video", "video"), "video"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
}
"""Types of parts in all APIs, and what the line calls them."""
_RESULTS = ("content", "output")  # of a tool's result, which is a block or an item


def without_old_media(messages: Any, info: ValidationInfo) -> Any:
    """Put a text in the place of each old image, sound, video and file of messages, or of items of Responses.

    All are old but those in the last message, if that is the user's: what a tool gave is old, too, as the model asked
    for it. With `--images refuse` none is.
    """
    noted = info.context
    if not isinstance(messages, list) or not isinstance(noted, IgnoredNames) or noted.options.images == "refuse":
        return messages
    last = len(messages) - 1
    place = f"{info.field_name}.content"
    return [_without(message, noted, place, is_new=number == last) for number, message in enumerate(messages)]


def _without(message: Any, noted: IgnoredNames, place: str, *, is_new: bool) -> Any:
    """Replace the parts of a message, or of an item that is a tool's result."""
    if not isinstance(message, dict):
        return message
    is_new = is_new and message.get("role") == "user"
    changed = {
        name: [_part(part, noted, place, is_new=is_new) for part in message[name]]
        for name in _RESULTS
        if isinstance(message.get(name), list)
    }
    return {**message, **changed} if changed else message


def _part(part: Any, noted: IgnoredNames, place: str, *, is_new: bool) -> Any:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "tool_result" and isinstance(part.get("content"), list):
        return _without(part, noted, place, is_new=False)
    if is_new or not isinstance(kind, str) or kind not in MEDIA:
        return part
    noted.leave_out(place, kind)
    return {"type": "text", "text": f"[{MEDIA[kind]} left out: this model reads text only]"}
