"""Tests of the console in a real browser: it shows the live, disconnected and removed members of a group, executes no data, loads
nothing from other hosts, and works with the keyboard alone.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.console.browser import Browser, same_origin
from tests.integration.console.fake_admin_port import EVIL, Stub, hostile
from tests.support.running_group import NAMES, RunningGroup
from tutti.producer import Producer
from tutti_gateway.reads.admin import assets

PAGE_BYTES_MAX = 300_000
WORD = "open-sesame"
MAIN = "document.querySelector('main').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as one:
        one.size(1280, 900)
        yield one


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path_factory.mktemp("group")) as three:
        send(three, 120)
        yield three


def send(three: RunningGroup, count: int) -> None:
    with Producer(three.url) as producer:
        for number in range(count):
            value = json.dumps({"flight": number, "note": EVIL}).encode() if number % 2 else b"\xff" * 9000
            producer.send("flights" if number % 3 else "gates", value, key=EVIL.encode() if number % 5 == 0 else b"EWR")


def admin(three: RunningGroup, name: str) -> str:
    return f"http://127.0.0.1:{three[name].port + 3}/"


def nothing_ran(browser: Browser) -> None:
    assert browser.run("window.hacked") is None
    assert browser.run("document.querySelectorAll('main img, main script, main iframe, [onerror], [onclick]').length") == 0
    assert browser.errors == []


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    sizes = {entry.name: len(entry.read_bytes()) for entry in assets.FOLDER.iterdir() if entry.is_file()}
    assert sum(sizes.values()) < PAGE_BYTES_MAX
    for name in sizes:
        text = (assets.FOLDER / name).read_text()
        allowed = text.replace("http://www.w3.org/2000/svg", "")
        assert "//" not in allowed.replace("// ", ""), f"{name} names another host"
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style=", "cookie"):
            assert way not in text, f"{name} uses {way}"


def test_hostile_names_and_records_are_text(browser: Browser) -> None:
    with Stub(hostile()) as stub:
        for page, what in (
            ("#/", "tbody tr"),
            ("#/topics", "tbody tr"),
            ("#/readers", "section + section tbody tr"),
            ("#/records", "table.records tbody tr"),
        ):
            browser.open(f"{stub.url}{page}")
            browser.until(f"document.querySelectorAll('main {what}').length > 0")
            assert "<img src=x onerror" in browser.text()
            nothing_ran(browser)
        browser.run("document.querySelectorAll('table.records button').forEach((one) => one.click())")
        browser.until("document.querySelectorAll('tr.open').length === 2")
        browser.run("location.hash = '#/'")
        browser.until("document.querySelector('main ol.changes li') !== null")
        links = browser.run("[...document.querySelectorAll('a')].map((one) => one.protocol)")
        assert set(links) == {"http:"}, "a gateway's word for where another one is makes no link that runs"
        nothing_ran(browser)
        assert same_origin(browser.requests, stub.url)


def test_a_token_is_asked_for_and_kept_in_memory_alone(browser: Browser) -> None:
    with Stub(hostile(), token=WORD) as stub:
        browser.open(stub.url)
        browser.until("!document.querySelector('#login').hidden && document.activeElement.id === 'token'")
        browser.ask("Input.insertText", text="wrong")
        browser.press("Enter")
        browser.until("!document.querySelector('#login').hidden && document.querySelector('#token').value === ''")
        browser.until("document.activeElement.id === 'token'")
        browser.ask("Input.insertText", text=WORD)
        browser.press("Enter")
        browser.until("document.querySelector('main tbody tr') !== null && document.querySelector('#login').hidden")
        assert f"Bearer {WORD}" in {seen.get("authorization") for seen in stub.seen}
        assert not any("cookie" in seen for seen in stub.seen)
        kept = browser.run(
            "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href, document.body.innerHTML])"
        )
        assert WORD not in kept
        assert not any(WORD in url for url in browser.requests)


def test_an_hour_with_an_open_page_needs_no_more_memory_than_a_minute(browser: Browser) -> None:
    """3600 looks, without the time between them."""
    with Stub(hostile()) as stub:
        browser.open(stub.url)
        browser.until("document.querySelector('main tbody tr') !== null")
        sizes: list[int] = browser.run(_AN_HOUR)
        assert sizes[0] <= 900
        assert sizes[1] <= 200
        assert sizes[3] <= sizes[2] * 1.1, "elements after an hour, and after some minutes"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_running_page_keeps_no_passed_records(browser: Browser) -> None:
    """Polls more often than the page keeps points: its heap is equal after a hundred and after a thousand more."""
    answers = hostile()
    first: Any = answers["history"]({})
    looks = itertools.count(1)

    def history(_: object) -> object:
        moved_us = next(looks) * 1_000_000
        points = [[first["now_us"] + moved_us, *point[1:]] for point in first["points"][:1]]
        changes = [{**change, "time_us": first["now_us"] + moved_us} for change in first["changes"][:1]]
        return {**first, "now_us": first["now_us"] + moved_us, "points": points, "changes": changes}

    def heap() -> int:
        for _ in range(2):
            browser.ask("HeapProfiler.collectGarbage")
        return int(browser.ask("Runtime.getHeapUsage")["usedSize"])

    at_once = "const wait = window.setTimeout; window.setTimeout = (act, ms) => wait(act, ms >= 50 ? 0 : ms)"
    kept = browser.ask("Page.addScriptToEvaluateOnNewDocument", source=at_once)["identifier"]
    try:
        with Stub(answers | {"history": history}) as stub:
            browser.open(stub.url)
            found = []
            for asked in (2100, 2300, 4300):  # two questions a look, and 900 looks are kept
                deadline = time.monotonic() + 120
                while len(stub.seen) < asked:
                    assert time.monotonic() < deadline, f"{len(stub.seen)} questions came"
                    browser.run("0")  # what it says is read meanwhile
                    time.sleep(0.05)
                found.append(heap())
    finally:
        browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=kept)
    assert found[2] < max(found[:2]) + 2_000_000, found  # a collection leaves a megabyte more or less


_AN_HOUR = """(async () => {
  const [{ Past }, { Overview }] = await Promise.all([import('/console/past.js'), import('/console/overview.js')]);
  const status = await (await fetch('/v1/status')).json(), first = await (await fetch('/v1/history')).json();
  const app = { past: new Past(900), status, consoles: {}, now_us: 0 };
  const page = new Overview(app);
  document.body.append(page.element);
  let early = 0;
  for (let second = 0; second < 3600; second++) {
    const time_us = first.now_us + second * 1e6;
    const points = first.points.map((point) => [time_us, ...point.slice(1)]);
    const changes = second % 10 ? [] : first.changes.map((change) => ({ ...change, time_us }));
    app.past.add({ ...first, points, changes });
    app.now_us = time_us;
    if (second % 20 === 0) page.show();
    if (second === 1800) early = page.element.querySelectorAll('*').length;
  }
  return [app.past.times_us.length, app.past.changes.length, early, page.element.querySelectorAll('*').length];
})()"""


_DRAWN = """(async () => {
  const [{ Lines, Span }, { count }] = await Promise.all([import('/console/chart.js'), import('/console/format.js')]);
  const span = new Span(), lines = [{ name: 'p', label: 'p' }, { name: 'q', label: 'q' }];
  const plot = new Lines('Plot', span, lines, count, { area: true });
  document.querySelector('main').replaceChildren(plot.element);
  [span.from, span.until] = [0, 20e6];
  const columns = new Map([['p', [4, null, 4, 4, 4, null, 9, 8]], ['q', [null, null, 2, null, 2, null, null, null]]]);
  plot.show([1, 2, 3, 4, 5, 6, 12, 19].map((s) => s * 1e6), columns, 4e6);
  return ['path.line.a', 'path.dot.a', 'path.area', 'path.line.b', 'path.dot.b'].map((name) => {
    const path = plot.element.querySelector(name), style = getComputedStyle(path);
    return [path.getAttribute('d').split('M').length - 1, style.strokeLinecap, parseFloat(style.strokeWidth)];
  });
})()"""


def test_a_single_point_between_gaps_is_drawn_as_a_dot(browser: Browser) -> None:
    with Stub(hostile()) as stub:
        browser.open(f"{stub.url}#/readers")
        browser.until("document.querySelector('main tbody tr') !== null")
        line, dot, area, second, second_dot = browser.run(_DRAWN)
        assert (line[0], dot[0], area[0]) == (1, 3, 1), "one run of three points, and three single ones"
        assert (second[0], second_dot[0]) == (0, 2)
        assert dot[1:] == second_dot[1:] == ["round", 4], "a line without length is visible by its round ends"
        assert browser.errors == []


_ADVICE = """(async () => {
  const { advice } = await import('/console/advice.js');
  const well = { name: 'g3', address: '192.0.2.3:7400', state: 'primary', reason: '', lag: 0, heard_us: 5, decides: true };
  return CASES.map((other) => advice({ ...well, ...other }));
})()"""


def test_each_member_that_needs_attention_has_what_to_do(browser: Browser) -> None:
    states = ("silent", "minority", "joining", "learner", "leaving", "halted", "unknown")
    cases: list[dict[str, object]] = [{}, {"lag": 10_000}]
    cases += [{"state": state} for state in states]
    cases += [
        {"lag": 10_001},
        {"reason": "its disk has no free space"},
        {"state": "silent", "heard_us": -1},
        {"state": "silent", "decides": False},
    ]
    with Stub(hostile()) as stub:
        browser.open(stub.url)
        found = browser.run(_ADVICE.replace("CASES", json.dumps(cases)))
        assert found[:2] == ["", ""]
        assert all(len(text) > 20 for text in found[2:])
        assert len(set(found[2:])) == len(found) - 2
        assert "Start g3 if it is down" in found[2]
        assert "tutti members replace g3" in found[2]
        assert "lags by 10,001 positions" in found[-4]
        assert found[-3] == "its disk has no free space."
        assert "192.0.2.3:7400" in found[-2]
        assert "replace" not in found[-1], "a change of the roster needs a majority"


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        ({"bytes": 0, "time_us": 0, "keep_for": {}, "held_bytes": 0, "reason": ""}, ("keeps all", "no limit is set")),
        (
            {"bytes": 10 << 30, "time_us": 7 * 86_400_000_000, "keep_for": {}, "held_bytes": 0, "reason": ""},
            ("7 d", "or 10 GiB"),
        ),
        (
            {"bytes": 0, "time_us": 129_600_000_000, "keep_for": {"archive": 4}, "held_bytes": 0, "reason": ""},
            ("36 h", "until read"),
        ),
        (
            {"bytes": 1 << 30, "time_us": 0, "keep_for": {"late": 0}, "held_bytes": 3 << 30, "reason": "start the reader late"},
            ("1 GiB", "3 GiB unread", "Retention waits: start the reader late."),
        ),
    ],
)
def test_retention_is_shown(browser: Browser, retention: dict[str, object], expected: tuple[str, ...]) -> None:
    answers = hostile()
    status: Any = answers["status"]({})
    with Stub(answers | {"status": lambda _: {**status, "retention": retention}}) as stub:
        browser.open(stub.url)
        for text in expected:
            browser.until(f"document.body.innerText.includes({json.dumps(text)})")


def test_tokens_that_cannot_be_read_are_shown_with_the_remedy(browser: Browser) -> None:
    answers = hostile()
    status: Any = answers["status"]({})
    security = {"tokens": 2, "trouble": "the tokens read before stay valid: tokens.toml: line 3", "refused": {}, "quotas": {}}
    with Stub(answers | {"status": lambda _: {**status, "security": security}}) as stub:
        browser.open(stub.url)
        for text in ("the tokens read before stay valid: tokens.toml: line 3.", "Correct the file that security.tokens names"):
            browser.until(f"document.querySelector('#banner').innerText.includes({json.dumps(text)})")


def test_a_group_at_work(browser: Browser, group: RunningGroup) -> None:
    url = admin(group, "g1")
    browser.open(url)
    browser.until(f"{MAIN}.includes('a majority is 2') && document.querySelectorAll('main tbody tr').length >= 3")
    text = browser.text()
    assert all(name in text for name in NAMES)
    assert browser.text("#state") == "primary"
    browser.until("document.querySelector('.facts').innerText.includes('120')")  # the frontier
    send(group, 30)
    browser.until("document.querySelector('.facts').innerText.includes('150')")
    browser.until("document.querySelectorAll('path.line[d^=M]').length > 0")  # a plot has a line
    browser.until("document.querySelector('main a[href^=\"http\"]') !== null")  # to the consoles of the others
    links = browser.run("[...document.querySelectorAll('main a[href^=\"http\"]')].map((one) => one.href)")
    assert set(links) <= {admin(group, name) for name in NAMES}
    assert same_origin(browser.requests, url)
    nothing_ran(browser)


def test_records_are_browsed_by_keyboard(browser: Browser, group: RunningGroup) -> None:
    url = admin(group, "g2")
    browser.open(f"{url}#/records")
    browser.until("document.querySelectorAll('table.records tbody tr').length === 50")
    newest = browser.run("document.querySelector('table.records td').innerText")
    browser.run("document.querySelector('.pager button').focus()")
    browser.press("Enter")  # older
    browser.until(f"document.querySelector('table.records td').innerText === String({int(newest) - 50})")
    browser.run("document.querySelector('input[name=topic]').focus()")
    browser.ask("Input.insertText", text="gates")
    browser.press("Tab")
    browser.ask("Input.insertText", text=EVIL)
    browser.press("Enter")
    browser.until("location.hash.includes('gates') && document.querySelectorAll('table.records tbody tr').length > 0")
    browser.until("[...document.querySelectorAll('table.records tbody td:nth-child(3)')].every((one) => one.innerText === 'gates')")
    browser.run("document.querySelector('table.records button').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('tr.open pre') !== null")
    assert browser.run("document.activeElement.innerText") == "Close"
    browser.until("document.querySelector('tr.open').innerText.includes('producer')")
    browser.run("location.hash = '#/records?start=2&topic=weather'")
    browser.until("document.querySelector('main').innerText.includes('No such record among')")
    browser.run("location.hash = '#/records?start=99999999'")
    browser.until("document.querySelector('main .problem').innerText.includes('is not between 0 and')")
    browser.run("location.hash = '#/topics'")
    browser.until(f"{MAIN}.includes('flights') && {MAIN}.includes('2 topics')")
    nothing_ran(browser)


def test_light_and_dark(browser: Browser, group: RunningGroup) -> None:
    def paper() -> Any:
        return browser.run("getComputedStyle(document.documentElement).backgroundColor")

    browser.open(admin(group, "g1"))
    light = paper()
    browser.size(390, 800, scheme="dark", mobile=True)
    dark = paper()
    assert dark != light
    browser.until(f"{MAIN}.includes('a majority is 2')")
    assert browser.run("document.documentElement.scrollWidth") <= 390, "a phone shows all of its width"
    browser.run("document.querySelector('#theme').click()")  # auto, then light
    assert paper() == light
    browser.run("localStorage.clear()")
    browser.size(1280, 900)


def test_a_member_that_is_killed_a_minority_and_the_end(browser: Browser, group: RunningGroup) -> None:
    browser.open(admin(group, "g1"))
    browser.until(f"{MAIN}.includes('a majority is 2')")
    group["g3"].kill()
    browser.until("document.querySelector('#banner').innerText.includes('g3')")
    browser.until("document.querySelector('ol.changes').innerText.includes('without g3')")
    assert browser.text("#state") == "primary"
    group["g2"].kill()
    browser.until("document.querySelector('#state').innerText === 'minority'")
    browser.until("document.querySelector('#banner').innerText.includes('cut off from a majority')")
    assert "150" in browser.text(".facts"), "what is committed is shown still"
    group["g1"].signal(signal.SIGSTOP)
    browser.until("document.querySelector('#state').innerText === 'unknown'")
    assert "150" in browser.text(".facts")
    group["g1"].signal(signal.SIGCONT)
    browser.until("document.querySelector('#state').innerText === 'minority'")
    group["g1"].kill()
    browser.until("document.querySelector('#banner').innerText.includes('No answer')")
    assert "150" in browser.text(".facts")
    assert "was minority" in browser.text("#state")
    nothing_ran(browser)
