"""The view Fleet: what is told becomes what is shown, what a reader does becomes a request."""

import pytest

from tests.page import fleets
from tests.page.stage import pool_map

pytestmark = pytest.mark.slow

DRAIN = "/admin/executors/7/drain"


@pytest.fixture
def visit(browser, stage):
    stage.live = fleets.whole_fleet(num_blocks=512)
    with browser.visit(stage.url, "fleet") as visit:
        visit.page.wait_for_selector("[data-testid=executor] >> nth=1")
        yield visit


def test_what_is_shown(visit):
    page = visit.page
    assert page.text_content("[data-testid=figure-running]") == "5"
    assert page.text_content("[data-testid=figure-output]") == "62"
    first = "[data-testid=executor][data-epoch='7']"
    assert "ready" in page.text_content(f"{first} >> [data-testid=state]")
    assert "draining" in page.text_content("[data-testid=executor][data-epoch='8'] >> [data-testid=state]")
    [drain, draining] = page.locator("[data-testid=executor] .head button").all()
    assert (drain.is_disabled(), draining.is_disabled()) == (False, True)
    colour = "button => getComputedStyle(button).color"
    assert drain.evaluate(colour) != draining.evaluate(colour), "they look alike"
    page.wait_for_selector(f"{first} >> text=in use 128 (25%)")
    rows = page.locator("[data-testid=waiting] tbody tr")
    assert rows.count() == 3
    assert "too few free blocks" in rows.nth(0).text_content()
    assert page.locator("[data-testid=events] li").first.get_attribute("data-kind") == "draining", "the newest is first"
    lost = page.text_content("[data-testid=events] li[data-kind=lost]")
    assert "executor-6" in lost
    assert "3 sequences" in lost
    assert page.locator("#fleet figure.chart").count() == 3


def test_blocks_by_keyboard(visit, stage):
    """Every block can be reached, and says what it is and which sequences have it."""
    page = visit.page
    holder = {"request": "chatcmpl-r0", "index": 0, "client": "bob", "blocks": [2, 3, 400]}
    for block, holders in ((0, []), (1, []), (2, [holder]), (511, [])):
        stage.answers["GET", f"/page/executors/7/blocks/{block}"] = {"holders": holders}
    told = page.locator("[data-testid=executor][data-epoch='7'] >> [data-testid=block]")
    page.locator("[data-testid=blocks]").first.focus()
    told.locator("text=Block 0: free").wait_for()
    page.keyboard.press("End")
    told.locator("text=Block 511: shared").wait_for()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    told.locator("text=chatcmpl-r0").wait_for()
    assert "bob" in told.text_content()
    stage.lives["chatcmpl-r0"] = stage_life()
    told.locator("a").click()
    page.wait_for_selector("#request:not([hidden]) >> [data-testid=sentence]")


def stage_life():
    marks = [{"at": 1.0, "what": "queued", "tokens": 3}, {"at": 2.0, "what": "ended", "cause": "cancelled"}]
    return {"request": "r", "now": 3.0, "sequences": [{"index": 0, "output": 0, "num_left_out": 0, "marks": marks}]}


def test_drain_asks_first(visit, stage):
    page = visit.page
    stage.answers["POST", DRAIN] = {"executor": "executor-7", "epoch": 7}
    page.click("[data-testid=executor][data-epoch='7'] >> text=Drain")
    page.wait_for_selector("dialog[open] >> text=Its process ends")
    assert page.evaluate("document.activeElement.textContent") == "Cancel", "Enter alone drains nothing"
    visit.accessible()
    visit.shot("fleet-drain")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog[open]")
    assert not [path for method, path, _ in stage.asked if method == "POST"]
    page.click("[data-testid=executor][data-epoch='7'] >> text=Drain")
    page.click("dialog[open] >> text=Let its sequences end there")
    page.click("dialog[open] button.primary")
    page.wait_for_selector("text=leaves when its sequences have ended.")
    assert [(path, body) for method, path, body in stage.asked if method == "POST"] == [(DRAIN, {"finish": True})]


def test_a_refused_drain_is_told(visit):
    visit.expects("status 404: POST .*drain", "console: .*404.*drain")
    visit.page.click("[data-testid=executor][data-epoch='7'] >> text=Drain")
    visit.page.click("dialog[open] button.primary")
    visit.page.wait_for_selector("text=Not drained: There is no /admin/executors/7/drain here.")


def test_the_scheduler_is_away(visit, stage):
    """What was said last stays, and the page says that it is old."""
    page = visit.page
    stage.send("gone", {})
    page.wait_for_selector("[data-testid=connection] >> text=cannot be reached")
    assert page.locator("[data-testid=executor]").count() == 2
    stage.send("status", fleets.report([fleets.executor(9, num_blocks=64)]))
    page.wait_for_selector("[data-testid=executor][data-epoch='9']")
    assert page.text_content("[data-testid=connection]") == ""
    assert page.locator("[data-testid=executor]").count() == 1


def test_what_nobody_has_said_is_not_shown(browser, stage):
    """No executors, an empty queue and no events would be statements about a service that has said nothing."""
    with browser.visit(stage.url, "fleet") as visit:
        stage.wait_for_listeners(1)
        stage.send("gone", {})
        told = "The scheduler cannot be reached at the moment."
        visit.page.wait_for_selector(f"[data-testid=connection] >> text={told}")
        assert visit.page.inner_text("#fleet").split("\n\n") == ["Fleet", told]
        stage.send("status", fleets.report([]))
        visit.page.wait_for_selector("#fleet >> text=No executor is there.")
        visit.page.wait_for_selector("#fleet >> text=No request waits.")


def test_a_journal_that_fails(visit, stage):
    stage.send("status", fleets.report([], journal="failed"))
    visit.page.wait_for_selector("[data-testid=alarm] >> text=The journal cannot be written.")
    visit.page.wait_for_selector("#fleet >> text=No executor is there.")
    visit.accessible()


def test_the_connection_is_made_again(visit, stage):
    """Everything is told anew, and nothing stands there twice."""
    page = visit.page
    stage.live[0] = ("status", fleets.report([fleets.executor(7, num_blocks=512)], waiting=3))
    stage.hang_up()
    page.wait_for_selector("[data-testid=connection] >> text=Connection lost")
    page.wait_for_function("() => document.querySelector('[data-testid=connection]').textContent === ''")
    assert page.locator("[data-testid=executor]").count() == 1
    assert page.locator("[data-testid=events] li").count() == 4
    assert page.locator("[data-testid=waiting] tbody tr").count() == 3


def test_a_view_that_is_not_shown_reads_nothing(visit, stage):
    page = visit.page
    page.click("nav >> text='Talk'")
    stage.wait_for_listeners(0)
    page.click("nav >> text='Fleet'")
    stage.wait_for_listeners(1)
    page.wait_for_selector("[data-testid=executor] >> nth=1")


def test_another_map_takes_the_place_of_the_first(visit, stage):
    stage.send("map", pool_map(7, [fleets.IN_USE] * 512))
    visit.page.wait_for_selector("[data-testid=executor][data-epoch='7'] >> text=in use 512 (100%)")


def test_there_is_nothing_to_roll_out_before_the_first_report(browser, stage):
    """And nothing while no executor is ready."""
    with browser.visit(stage.url, "fleet") as visit:
        stage.wait_for_listeners(1)
        button = visit.page.locator("#fleet >> text=Roll out")
        assert button.is_disabled()
        stage.send("status", fleets.report([fleets.executor(7, state="draining")]))
        visit.page.wait_for_selector("[data-testid=executor]")
        assert button.is_disabled()
        stage.send("status", fleets.report([fleets.executor(7, state="draining"), fleets.executor(8)]))
        visit.page.wait_for_selector("[data-testid=executor] >> nth=1")
        assert button.is_enabled()
        visit.page.wait_for_timeout(1100)  # a tick of the view's clock
        assert button.is_enabled()
