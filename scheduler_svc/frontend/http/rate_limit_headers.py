"""Headers that say what a client has left of its limits, by the names that OpenAI and Anthropic give them."""

from datetime import UTC, datetime, timedelta

from common import messages as m

# Of requests and of tokens: the limit, what remains, and when all is there again.
OPENAI_HEADERS = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
ANTHROPIC_HEADERS = (
    (
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
    ("anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
)


def rate_limit_headers(limits: m.RateLimits, now: datetime, *, is_of_messages: bool) -> dict[str, str]:
    """Tell a client what it has left. Limits that it does not have are left out.

    Args:
        is_of_messages: whether the request was for Anthropic's API, whose clients are told a moment where OpenAI's are
            told a duration.
    """
    headers: dict[str, str] = {}
    names = ANTHROPIC_HEADERS if is_of_messages else OPENAI_HEADERS
    for own_names, rate in zip(names, (limits.requests, limits.tokens), strict=True):
        if rate is not None:
            at = (now + timedelta(seconds=rate.reset_s)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            reset = at if is_of_messages else duration(rate.reset_s)
            headers |= zip(own_names, (str(rate.limit), str(rate.remaining), reset), strict=True)
    return headers


def duration(seconds: float) -> str:
    """Write a duration as OpenAI does, and Go, in which its clients parse it: `6m0s`, `7.66s`, `120ms`."""
    ms = round(seconds * 1000)
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text
