"""The page of a schedule's steps: buttons, keys, motion and the tree of the sum, in light and dark, on a phone and without motion."""

import contextlib
import subprocess

import pytest
import rig

BINARY = rig.ROOT / "target" / "debug" / "herringbone"
AXE = rig.PACKAGES / "axe-core" / "axe.min.js"
SCHEDULES = {
    "ring": "--algorithm ring --ranks 4",
    "served": "--algorithm reduction_server --ranks 4 --reducers 5",
    "tree": "--algorithm tree --ranks 6",
    "alone": "--algorithm ring --ranks 1",
    "wide": "--algorithm hierarchical(radix,radix) --ranks 16 --per-host 4",
}
WINDOWS = {"light": {}, "dark": {"dark": True}, "phone": {"width": 360, "height": 740, "dark": True}}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of each schedule's page."""
    folder = tmp_path_factory.mktemp("steps")
    for name, args in SCHEDULES.items():
        subprocess.run([BINARY, "show", *args.split(), "--html", folder / f"{name}.html"], check=True, capture_output=True)
    return {name: (folder / f"{name}.html").as_uri() for name in SCHEDULES}


@contextlib.contextmanager
def opened(browser, address, motion="reduce", **window):
    """A page of which Chromium may complain of nothing, and that asks for nothing."""
    sheet = rig.Sheet(browser, **window)
    asked = []
    sheet.page.on("request", lambda request: asked.append(request.url))
    sheet.page.emulate_media(reduced_motion=motion)
    sheet.page.goto(address)
    yield sheet
    assert asked == [address]
    assert sheet.close() == []


def cell(sheet, chunk, rank):
    """What a rank holds of a chunk, and how it looks."""
    found = sheet.page.locator("#blocks tr.row").nth(chunk).locator("td").nth(rank)
    return found.text_content(), set((found.get_attribute("class") or "").split())


def where(sheet):
    return sheet.text("#where")


def test_buttons_and_keys_go_from_step_to_step(browser, pages):
    with opened(browser, pages["ring"]) as sheet:
        assert where(sheet) == "start, 6 steps follow"
        assert cell(sheet, 0, 1) == ("b0", {"held", "input"})
        assert sheet.page.is_disabled("#back") and sheet.page.is_disabled("#first")
        sheet.page.click("#next")
        assert where(sheet) == "step 1 of 6"
        assert cell(sheet, 0, 1) == ("a0+b0", {"held", "partial", "new"})
        assert cell(sheet, 0, 0) == ("a0", {"held", "input"})
        messages = "rank 0 → rank 1: a0|rank 1 → rank 2: b1|rank 2 → rank 3: c2|rank 3 → rank 0: d3"
        assert sheet.page.locator("#messages li").all_text_contents() == messages.split("|")
        sheet.page.locator("#next").blur()
        for key, place in {"ArrowRight": 2, "End": 6, "ArrowLeft": 5, "Home": 0}.items():
            sheet.page.keyboard.press(key)
            assert where(sheet).startswith(f"step {place} " if place else "start"), key
        sheet.page.keyboard.press("ArrowLeft")
        assert where(sheet).startswith("start"), "there is nothing before the start"
        sheet.page.click("#last")
        assert sheet.page.is_disabled("#next") and cell(sheet, 3, 0) == ("a3+d3+b3+c3", {"held", "result"})
        sheet.page.fill("#slider", "3")
        assert where(sheet) == "step 3 of 6"
        # Space on a button presses it, as everywhere.
        sheet.page.focus("#back")
        sheet.page.keyboard.press("Space")
        assert where(sheet) == "step 2 of 6" and sheet.text("#play") == "Play"


def test_one_rank_has_one_step_without_messages(browser, pages):
    with opened(browser, pages["alone"]) as sheet:
        assert where(sheet) == "start, 1 step follows"
        sheet.page.keyboard.press("End")
        assert where(sheet) == "step 1 of 1" and cell(sheet, 0, 0) == ("a0", {"held", "result", "new"})


def test_space_plays_to_the_end_and_again(browser, pages):
    with opened(browser, pages["served"]) as sheet:
        sheet.page.keyboard.press("Space")
        assert sheet.text("#play") == "Pause"
        sheet.within(30, "document.getElementById('where').textContent === 'step 2 of 2'")
        sheet.within(30, "document.getElementById('play').textContent === 'Play'")
        sheet.page.keyboard.press("Space")
        sheet.within(30, "document.getElementById('where').textContent.startsWith('start')")
        sheet.page.keyboard.press("Space")
        assert sheet.text("#play") == "Play"


def test_messages_fly_unless_the_reader_wants_no_motion(browser, pages):
    for motion, flies in {"no-preference": True, "reduce": False}.items():
        with opened(browser, pages["ring"], motion) as sheet:
            flying = "document.querySelectorAll('.flying').length"
            during = sheet.page.evaluate(f"(document.getElementById('next').click(), {flying})")
            assert during == (4 if flies else 0)
            sheet.within(10, f"document.getElementById('where').textContent === 'step 1 of 6' && {flying} === 0")
            assert cell(sheet, 0, 1)[0] == "a0+b0"
    # Whoever hurries loses no step.
    with opened(browser, pages["ring"], "no-preference") as sheet:
        for _ in range(3):
            sheet.page.keyboard.press("ArrowRight")
        sheet.within(10, "document.getElementById('where').textContent === 'step 3 of 6'")
        assert cell(sheet, 0, 3)[0] == "a0+b0+c0+d0"


def test_the_tree_of_the_sum_grows(browser, pages):
    with opened(browser, pages["tree"]) as sheet:
        ready = []
        for _ in range(7):
            ready.append(int(sheet.text("#ready").split()[0]))
            sheet.page.keyboard.press("ArrowRight")
        assert ready[0] == 0 and ready == sorted(ready) and ready[-1] == 5
        assert sheet.text("#ready") == "5 of 5 additions are done: ((a0+b0)+(c0+d0))+(e0+f0)"
        assert sheet.page.locator("#tree text").all_text_contents() == [
            "a0",
            "b0",
            "+",
            "c0",
            "d0",
            "+",
            "+",
            "e0",
            "f0",
            "+",
            "+",
        ]
    with opened(browser, pages["ring"]) as sheet:
        sheet.page.select_option("#chunk", "2")
        sheet.page.click("#last")
        assert sheet.text("#ready") == "3 of 3 additions are done: c2+d2+a2+b2"


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("window", WINDOWS)
def test_it_can_be_read_in_every_window(browser, pages, name, window):
    with opened(browser, pages[name], **WINDOWS[window]) as sheet:
        sheet.page.keyboard.press("ArrowRight")
        sheet.picture(f"steps-{name}-{window}")
        assert sheet.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        # No block and no name covers another one.
        assert sheet.page.evaluate("""() => {
            const boxes = [...document.querySelectorAll('#blocks td.held')].map((cell) => cell.getBoundingClientRect());
            return boxes.every((one, at) => boxes.slice(at + 1).every((other) =>
                one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top));
        }""")
        if AXE.exists():
            sheet.page.evaluate(AXE.read_text())
            found = sheet.page.evaluate("axe.run().then(found => found.violations)")
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
