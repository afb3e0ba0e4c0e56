"""The page at `/`, in a real browser against a real server."""

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE = 20_000  # ms; the machine may be busy
TIMING = re.compile(r"^[\d.]+ (µs|ms|s) on the server, [\d.]+ (µs|ms|s) in all$")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium program to show the page with")


class Server(Protocol):
    @property
    def url(self) -> str: ...


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty tab; whatever a test does, no script may fail."""
    yield from tab(browser)


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    yield from tab(browser, viewport={"width": 360, "height": 740}, has_touch=True, device_scale_factor=2)


def tab(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    yield page
    context.close()
    assert failures == []


def call(server: Server, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(server.url + path, data, {"content-type": "application/json"}), timeout=20) as answer:
        return json.load(answer)


def items(server: Server, n: int = 6) -> list[dict[str, str]]:
    """Some popular items."""
    found = call(server, f"/v1/items?limit={n}")["items"]
    assert len(found) == n
    return [{"item": str(line["item"]), "name": line["name"]} for line in found]


def visit(page: Page, server: Server) -> Page:
    page.goto(server.url)
    expect(page.locator("#recommendations li")).to_have_count(10)
    expect(page.locator("#state [data-block]")).not_to_have_count(0)
    return page


def shown(page: Page) -> list[str | None]:
    return [line.get_attribute("data-item") for line in page.locator("#recommendations li").all()]


def pick(page: Page, item: str, length: int) -> None:
    """Click a result; done when the history has `length` events."""
    page.locator(f'#results [data-item="{item}"]').click()
    expect(page.locator("#history li")).to_have_count(length)


def heights(bars: Locator) -> list[str]:
    found: list[str] = bars.evaluate_all("bars => bars.map((bar) => bar.style.transform)")
    return found


def test_every_click_changes_what_comes_next(page: Page, server: Server) -> None:
    wanted = items(server)[2]
    before = shown(visit(page, server))
    expect(page.locator("#timing")).to_have_text(TIMING)
    expect(page.locator("#after")).to_contain_text("popular")

    page.fill("#search", wanted["name"])
    expect(page.locator("#found")).to_contain_text("found")
    pick(page, wanted["item"], length=1)
    after = shown(page)
    assert after != before
    assert wanted["item"] not in after
    expect(page.locator("#timing")).to_have_text(TIMING)
    expect(page.locator("#after")).to_have_text(f"After {wanted['name']}:")
    marks = page.locator("#recommendations .move").all_inner_texts()
    assert any(re.search(r"new|up \d|down \d", mark) for mark in marks)

    page.locator("#recommendations button").first.click()
    expect(page.locator("#history li")).to_have_count(2)
    assert after[0] not in shown(page)
    expect(page.locator("#history li").first).to_have_attribute("data-item", str(after[0]))
    expect(page.locator("#times")).to_contain_text("2 updates, median ")
    assert call(server, f"/v1/users/{page.input_value('#user')}")["length"] == 2


def tab_to(page: Page, selector: str) -> Locator:
    """Press Tab until the focus is there, and can be seen."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focus = page.locator(f"{selector}:focus")
        if focus.count():
            assert focus.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
            return focus
    raise AssertionError(f"Tab does not lead to {selector}")


def test_the_keyboard_is_enough(page: Page, server: Server) -> None:
    wanted = items(server)[1]
    visit(page, server)
    tab_to(page, "#search")
    page.keyboard.type(wanted["name"])
    page.keyboard.press("Enter")  # at once: the first thing found
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#results [aria-selected=true]")).to_have_attribute("id", "result-0")

    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    expect(page.locator("#found")).to_have_text("Popular items")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    second = page.locator("#results [role=option]").nth(1)
    expect(second).to_have_attribute("aria-selected", "true")
    expect(page.locator("#search")).to_have_attribute("aria-activedescendant", "result-1")
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(2)
    expect(page.locator("#history li").first).to_have_attribute("data-item", str(second.get_attribute("data-item")))

    tab_to(page, "#recommendations button")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(3)
    expect(page.locator("#recommendations button").nth(1)).to_be_focused()  # the same place in the new list

    tab_to(page, "#forget")
    page.keyboard.press("Enter")
    expect(page.locator("#forget-no")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#forget")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, "#forget-yes")
    page.keyboard.press("Enter")
    expect(page.locator("#past")).to_have_text("Nothing yet.")
    expect(page.locator("#past-title")).to_be_focused()


def test_the_state_is_drawn_and_moves(page: Page, server: Server) -> None:
    decay = call(server, "/v1/model")["decay"]
    first, second, *_ = items(server)
    visit(page, server)
    blocks = page.locator("#state [data-block]")
    expect(blocks).to_have_count(len(decay))
    pick(page, first["item"], length=1)
    before = [heights(block.locator(".is")) for block in blocks.all()]
    pick(page, second["item"], length=2)
    for block, lambdas, was in zip(blocks.all(), decay, before, strict=True):
        now, ghost = heights(block.locator(".is")), heights(block.locator(".was"))
        assert len(now) == len(ghost) == len(lambdas)
        assert now != was
        assert now != ghost
        assert any(height != "scaleY(0)" for height in ghost)
        expect(block.locator("figcaption")).to_have_text(re.compile(r"mean [\d.]+, was [\d.]+"))
        expect(block.locator(".trail li")).to_have_count(2)
        expect(block.locator(".trail li").first).to_have_attribute("title", second["name"])

    user = page.input_value("#user")
    state = call(server, f"/v1/users/{user}?state=true")["state"]
    for block, lambdas, values in zip(blocks.all(), decay, state, strict=True):  # fast channels first, to scale
        order = sorted(range(len(lambdas)), key=lambda c: lambdas[c])
        drawn = [float(height[len("scaleY(") : -1]) for height in heights(block.locator(".is"))]
        tallest = max(drawn)
        expected = [values[c] / max(values) for c in order]
        assert [height / tallest for height in drawn] == pytest.approx(expected, abs=1e-3)


def test_the_strip_keeps_twelve_events(page: Page, server: Server) -> None:
    page.emulate_media(reduced_motion="reduce")  # nothing to wait for
    visit(page, server)
    for length in range(1, 15):
        page.locator("#recommendations button").first.click()
        expect(page.locator("#history li")).to_have_count(length)
    for block in page.locator("#state [data-block]").all():
        expect(block.locator(".trail li")).to_have_count(12)


def test_half_lives_are_those_of_the_model(page: Page, server: Server) -> None:
    visit(page, server)
    lines = page.locator("#fading li").all_inner_texts()
    for block, lambdas in enumerate(call(server, "/v1/model")["decay"]):
        events = int(re.findall(r"after about ([\d,]+) event", lines[block])[0].replace(",", ""))
        left = [sum(x**n for x in lambdas) / len(lambdas) for n in (events - 0.51, events + 0.51)]
        assert lines[block].startswith(f"Block {block + 1}: half is forgotten")
        assert left[1] < 0.5
        assert left[0] > 0.5 or events == 1


def test_history_and_forgetting(page: Page, server: Server) -> None:
    first, second, *_ = items(server)
    visit(page, server)
    user = page.input_value("#user")
    assert re.fullmatch(r"visitor-[0-9a-f]{6}", user)
    expect(page.locator("#forget")).to_be_hidden()
    pick(page, first["item"], length=1)
    pick(page, second["item"], length=2)
    lines = page.locator("#history li")
    assert [line.get_attribute("data-item") for line in lines.all()] == [second["item"], first["item"]]
    expect(lines.first).to_contain_text(second["name"])
    expect(lines.first).to_contain_text("just now")
    expect(lines.first).to_contain_text("100% left")

    page.reload()
    expect(lines).to_have_count(2)
    page.get_by_role("button", name="Forget me").click()
    expect(page.locator("#sure")).to_contain_text(user)
    page.click("#forget-no")
    expect(page.locator("#sure")).to_be_hidden()
    expect(lines).to_have_count(2)
    page.click("#forget")
    page.click("#forget-yes")
    expect(page.locator("#status")).to_have_text(f"{user} is forgotten.")
    expect(page.locator("#past")).to_have_text("Nothing yet.")
    expect(page.locator("#after")).to_contain_text("popular")
    expect(page.locator("#state .trail li")).to_have_count(0)
    with pytest.raises(HTTPError, match="404") as gone:
        call(server, f"/v1/users/{user}")
    gone.value.close()


def test_another_user(page: Page, server: Server) -> None:
    item, *_ = items(server)
    user = f"Ännchen & co/2? #{uuid4().hex[:8]}"
    call(server, "/v1/events", {"user": user, "item": item["item"]})
    visitor = visit(page, server).input_value("#user")
    page.fill("#user", user)
    page.press("#user", "Enter")
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#after")).to_have_text(f"For {user}:")
    expect(page.locator("#forget")).to_have_text(f"Forget {user}")
    page.locator("#recommendations button").first.click()
    expect(page.locator("#history li")).to_have_count(2)
    assert call(server, f"/v1/users/{quote(user, safe='')}")["length"] == 2

    page.reload()
    expect(page.locator("#user")).to_have_value(user)
    page.click("#fresh")
    expect(page.locator("#past")).to_have_text("Nothing yet.")
    assert re.fullmatch(r"visitor-[0-9a-f]{6}", page.input_value("#user"))
    assert page.input_value("#user") != visitor


def overflow(page: Page) -> int:
    wide: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return wide


def test_it_fits_a_phone(phone: Page, server: Server) -> None:
    visit(phone, server)
    assert overflow(phone) <= 0
    phone.locator("#results [role=option]").first.tap()
    expect(phone.locator("#history li")).to_have_count(1)
    phone.locator("#recommendations button").first.tap()
    expect(phone.locator("#history li")).to_have_count(2)
    assert overflow(phone) <= 0
    phone.tap("#forget")
    assert overflow(phone) <= 0
    assert phone.locator("#recommendations li").first.bounding_box() is not None


def test_long_names_fit_a_phone(phone: Page, server: Server) -> None:
    rename(phone, "endless" * 40)
    visit(phone, server)
    phone.locator("#results [role=option]").first.tap()
    expect(phone.locator("#history li")).to_have_count(1)
    assert overflow(phone) <= 0


# The contrast of every visible text with what lies behind it: those below 4.5.
FAINT = """() => {
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    pixel.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1); }
    return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) =>
    element ? [...behind(element.parentElement), getComputedStyle(element).backgroundColor] : [];
  const contrast = (element, colour) => {
    const [a, b] = [light(over(behind(element))), light(over([...behind(element), colour]))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const written = (element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const texts = [...document.body.querySelectorAll("*")].filter((element) => element.checkVisibility());
  return texts.filter((element) => written(element) || element.tagName === "INPUT").flatMap((element) => {
    const parts = element.tagName === "INPUT" ? [null, "::placeholder"] : [null];
    return parts.map((part) => [element.textContent, contrast(element, getComputedStyle(element, part).color)]);
  }).filter(([, ratio]) => !(ratio >= 4.5));
}"""


def test_dark_and_light_can_be_read(page: Page, server: Server) -> None:
    grounds = []
    visit(page, server)
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#history li")).to_have_count(1)
    page.locator("#recommendations button").first.click()
    expect(page.locator("#history li")).to_have_count(2)
    page.click("#forget")
    page.evaluate("document.getElementById('key-form').hidden = false")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate(FAINT) == []
    light, dark = ([int(part) for part in re.findall(r"\d+", ground)] for ground in grounds)
    assert min(light) > 220
    assert max(dark) < 50


def test_nothing_leaves_the_origin_and_nothing_is_amiss(page: Page, server: Server) -> None:
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    visit(page, server)
    page.fill("#search", "a")
    expect(page.locator("#found")).to_contain_text("found")
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#history li")).to_have_count(1)
    page.click("#forget")
    page.click("#forget-yes")
    expect(page.locator("#past")).to_have_text("Nothing yet.")
    assert [url for url in asked if not url.startswith((server.url + "/", "data:"))] == []
    assert [url for url in asked if "favicon" in url] == []
    assert said == []


def rename(page: Page, name: str) -> None:
    """Every item has this name."""

    def altered(route: Route) -> None:
        answer = route.fetch()
        body = re.sub(r'"name": ?"[^"]*"', lambda _: f'"name": {json.dumps(name)}', answer.text())
        route.fulfill(response=answer, body=body)

    page.route(re.compile(r"/v1/(items|events|users)"), altered)


def test_names_are_text(page: Page, server: Server) -> None:
    name = "<b>Tea</b> & <img src=x onerror=\"document.title='broken'\"> jam"
    rename(page, name)
    visit(page, server)
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#history li")).to_have_count(1)
    page.locator("#recommendations button").first.click()
    expect(page.locator("#history li")).to_have_count(2)
    for place in ("#results [role=option]", "#recommendations .name", "#history li", "#after", ".trail li"):
        expect(page.locator(place).first).to_contain_text(name)
    assert page.locator("main b, main img").count() == 0
    assert "lrurec" in page.title()


def test_a_key_is_asked_for(page: Page, server: Server) -> None:
    def guarded(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": "this server wants a key"})

    page.route(re.compile(r"/v1/"), guarded)
    page.goto(server.url)
    expect(page.locator("#key")).to_be_focused()
    status = page.locator("#status")
    expect(status).to_have_text("this server wants a key")
    expect(status).to_have_attribute("role", "alert")
    for key in ("wrong", "sesame"):
        page.fill("#key", key)
        page.press("#key", "Enter")
        expect(page.locator("#key")).to_be_visible(visible=key == "wrong")
    expect(page.locator("#recommendations li")).to_have_count(10)
    expect(status).to_have_text("")
    page.reload()  # the key is kept
    expect(page.locator("#recommendations li")).to_have_count(10)
    expect(page.locator("#key")).to_be_hidden()


def test_without_a_need_there_is_no_key_field(page: Page, server: Server) -> None:
    visit(page, server)
    expect(page.locator("#key")).to_be_hidden()


def test_a_busy_server_is_asked_again_with_the_same_id(page: Page, server: Server) -> None:
    sent: list[Any] = []

    def busy_at_first(route: Route) -> None:
        sent.append(route.request.post_data_json)
        if len(sent) == 1:
            route.fulfill(status=503, json={"error": "too many requests at once"}, headers={"retry-after": "1"})
        else:
            route.continue_()

    visit(page, server)
    page.route(re.compile(r"/v1/events"), busy_at_first)
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#status")).to_have_text("busy, try again: too many requests at once")
    page.click("#retry")
    expect(page.locator("#history li")).to_have_count(1)
    expect(page.locator("#status")).to_have_text("")
    assert sent[0] == sent[1]
    assert len(sent[0]["id"]) == 36


def test_errors_are_shown(page: Page, server: Server) -> None:
    visit(page, server)
    page.route(re.compile(r"/v1/events"), lambda route: route.fulfill(status=404, json={"error": "no item 'tee'"}))
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#status")).to_have_text("no item 'tee'")
    expect(page.locator("#retry")).to_be_hidden()
    page.unroute_all()
    page.route(re.compile(r"/v1/events"), lambda route: route.abort())
    page.locator("#results [role=option]").first.click()
    expect(page.locator("#status")).to_have_text("no answer from the server")
    expect(page.locator("#retry")).to_be_visible()


def test_late_answers_of_old_searches_are_dropped(page: Page, server: Server) -> None:
    visit(page, server)
    name = items(server)[3]["name"]
    held: list[Route] = []
    page.route(re.compile(r"search=zzz"), lambda route: held.append(route))
    with page.expect_request(re.compile(r"search=zzz")):
        page.fill("#search", "zzz")
    page.fill("#search", name)
    expect(page.locator("#results [role=option]").first).to_contain_text(name)
    with page.expect_response(re.compile(r"search=zzz")):
        held[0].fulfill(json={"items": [{"item": "late", "name": "Too late"}]})
    page.press("#search", "ArrowDown")
    expect(page.locator("#results [role=option]").first).to_contain_text(name)
    expect(page.locator('#results [data-item="late"]')).to_have_count(0)


def test_plain_http_has_no_random_uuid(page: Page, server: Server) -> None:
    events: list[Any] = []
    page.add_init_script("delete Crypto.prototype.randomUUID")
    page.on("request", lambda sent: events.append(sent.post_data_json) if sent.method == "POST" else None)
    visit(page, server)
    for length in (1, 2):
        pick(page, items(server)[length]["item"], length)
    ids = {event["id"] for event in events}
    assert len(ids) == 2
    assert all(re.fullmatch(r"[0-9a-f]{32}", key) for key in ids)


def test_motion_is_left_out_where_it_is_not_wanted(page: Page, server: Server) -> None:
    page.emulate_media(reduced_motion="reduce")
    visit(page, server)
    page.locator("#recommendations button").first.click()
    expect(page.locator("#history li")).to_have_count(1)
    assert page.evaluate("document.getAnimations().length") == 0
