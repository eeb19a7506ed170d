"""How far a long run is: no number that is not known, a rate of now, a rest that only becomes less."""

import itertools
import json

from scheduler_svc.client.progress import ServiceTokens, Tally


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def tally(clock, total=60, unit="lines", **options):
    return Tally(total, unit, now=clock, **options)


def test_what_is_not_known_yet_is_not_said():
    clock = Clock()
    count = tally(clock)
    clock.now_s = 5.0
    assert count.line() == "0 of 60 lines"


def test_the_service_says_what_it_generates_while_no_line_has_ended():
    clock = Clock()
    count = tally(clock)
    count.hear(ServiceTokens(1000, 0.0))
    count.hear(ServiceTokens(1440, 88.25))
    clock.now_s = 5.0
    assert count.line() == "0 of 60 lines, the service generates 88.2 tokens/s (440 tokens so far)"
    count.hear(ServiceTokens(10, 20.0))  # it was started again
    assert count.line() == "0 of 60 lines, the service generates 20.0 tokens/s (0 tokens so far)"
    count.hear(None)
    assert count.line() == "0 of 60 lines"


def test_the_rest_only_becomes_less_until_the_next_line_ends():
    clock = Clock()
    count = tally(clock, total=4)
    clock.now_s = 10.0
    count.tokens += 100
    count.advance(1)
    assert count.line() == "1 of 4 lines, 10.0 tokens/s, 30.0 s left"
    clock.now_s = 25.0
    assert count.line() == "1 of 4 lines, 4.0 tokens/s, 15.0 s left"
    clock.now_s = 50.0
    count.advance(1)
    assert count.line().endswith(", 0.0 s left")
    count.advance(2)
    assert count.line().endswith(", 50.0 s left")


def test_the_rate_of_tokens_that_are_counted_as_they_come_is_of_now():
    """An average since the start goes on to show how long the first one was waited for."""
    clock = Clock()
    count = tally(clock, unit="requests", is_live=True)
    for second in range(1, 101):
        clock.now_s = float(second)
        count.tokens += 0 if second <= 60 else 50
        line = count.line()
    assert line == "0 of 60 requests, 50.0 tokens/s"
    assert count.rates() == "20.0 tokens/s", "at the end it is of the whole"
    clock.now_s = 130.0
    assert count.line() == "0 of 60 requests, 0.0 tokens/s"


def test_a_batch_shows_what_the_service_generates(baton, server, tmp_path):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}
    (tmp_path / "in.jsonl").write_text(json.dumps(line))
    server.is_ready, looks = False, itertools.count()
    server.status_report = {"output_tokens": 5, "output_tokens_per_s": 88.25, "anything": "else"}

    def looked(path):
        number = next(looks)
        server.status_report["output_tokens"] = 5 + 100 * (number > 3)
        server.is_ready = number > 6

    server.looked = looked
    done = baton("batch", "--direct", tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    *told, last = [line for line in done.stderr.splitlines() if "waiting" not in line]
    assert told[0] == "0 of 1 lines, the service generates 88.2 tokens/s (0 tokens so far)"
    assert "0 of 1 lines, the service generates 88.2 tokens/s (100 tokens so far)" in told
    assert last.startswith("1 of 1 lines in ")
