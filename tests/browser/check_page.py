"""The live page with recorded and made answers: what it says, how it looks, and what it does with names that are no names."""

import answers
import pytest
import rig

LATE = "#late .alarm"
AXE = rig.PACKAGES / "axe-core" / "axe.min.js"
CASES = {
    "light": (lambda: answers.recorded("two", history=True), {}),
    "dark": (lambda: answers.recorded("stopped", history=True), {"dark": True}),
    "phone": (lambda: answers.recorded("stopped", history=True), {"width": 360, "height": 740}),
    "ranks-64": (lambda: stopped(64, 8), {}),
    "ranks-64-dark-phone": (lambda: stopped(64, 8), {"width": 360, "height": 740, "dark": True}),
    "ranks-1024": (lambda: stopped(1024, 128), {}),
    "ranks-1024-dark": (lambda: stopped(1024, 128), {"dark": True}),
    "hosts-4": (lambda: answers.ring(8, 4), {}),
    "reducer-lost": (lambda: answers.recorded("killed"), {"dark": True}),
    "reducer-alone": (lambda: answers.recorded("reducer"), {}),
    "tables": (lambda: answers.recorded("tables"), {}),
    "hostile": (answers.hostile, {}),
}


def stopped(ranks, hosts):
    """A ring in which rank 9 is stopped."""
    return answers.stop(answers.ring(ranks, hosts), 9, [rank for rank in range(ranks) if rank != 9])


def is_within_window(sheet):
    """Whether nothing makes the page wider than its window: only tables scroll, by themselves."""
    return sheet.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("name", CASES)
def test_no_picture_is_wider_than_its_window_and_all_can_be_read(opened, name):
    make, window = CASES[name]
    _, sheet = opened(make(), **window)
    sheet.within(5, "document.querySelectorAll('#map svg *').length > 5")
    sheet.page.wait_for_timeout(1200)
    sheet.picture(name)
    assert is_within_window(sheet)
    assert lost_labels(sheet) == []
    if AXE.exists():
        sheet.page.evaluate(AXE.read_text())
        found = sheet.page.evaluate("axe.run().then(found => found.violations)")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def lost_labels(sheet):
    """Texts of the map that its edges cut."""
    return sheet.page.evaluate("""() => {
        const map = document.querySelector('#map svg').getBoundingClientRect();
        return [...document.querySelectorAll('#map svg text')].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < map.left - 1 || box.right > map.right + 1 || box.top < map.top - 1 || box.bottom > map.bottom + 1;
        }).map((text) => text.textContent);
    }""")


def test_a_job_that_runs_has_nobody_late(opened):
    _, sheet = opened(answers.recorded("job"))
    assert sheet.text("#late") == "✓ nobody is late"
    assert sheet.text("#head") == "job 220180c67af6325d: 4 workers, 1 reducer, 5 of 5 members answer, epoch 0"
    assert "live" in sheet.text("#fresh")
    assert sheet.page.locator("#members tbody tr").count() == 5
    assert "rank 0 (this page)" in sheet.text("#members")
    links = sheet.page.locator("#map .link title").all_text_contents()
    assert len(links) == 8 and "rank 0 to reducer 127.0.0.1:38177: 56.0 MB/s, TCP" in links
    assert "4 of 4" in sheet.text("#jobs") and "this one" in sheet.text("#jobs")
    assert sheet.page.locator("#tables-part").is_hidden()


def test_who_is_late_is_said_in_red_and_in_words(opened):
    _, sheet = opened(answers.recorded("stopped"))
    words = "rank 2 keeps ranks 0, 1 and 3 and reducer 127.0.0.1:38177 waiting: 4.0 s in all_reduce #144; it does not answer"
    assert sheet.text(LATE) == f"▲ LATE {words}"
    red, green, blue = sheet.page.evaluate(f"getComputedStyle(document.querySelector('{LATE}')).color.match(/\\d+/g).map(Number)")
    assert red > 2 * green and red > 2 * blue
    # A reader that hears the page is told who it is, and not anew every second.
    assert sheet.page.get_attribute("#said", "aria-live") == "polite"
    assert sheet.page.text_content("#said") == words.split(": 4.0")[0]
    assert "rank 2: no answer" in sheet.page.get_attribute("#map svg", "aria-label")
    assert sheet.page.locator("#map .member.silent").count() == 1
    assert "? no answer" in sheet.text("#members tbody tr:first-child")
    assert sheet.page.title().startswith("▲")


def test_a_job_in_which_all_wait_for_each_other_is_stuck(opened):
    answer = answers.ring(4, 2)
    wait = {"operation": "all_reduce of 4 f32, sum (operation 17)", "group": "world", "sequence": 17, "more": 0, "why": None}
    answer["waits"] = [
        wait | {"for": "rank 0", "by": ["rank 1"], "seconds": 5.0},
        wait | {"for": "rank 1", "by": ["rank 0"], "seconds": 4},
    ]
    _, sheet = opened(answer)
    assert sheet.text(LATE) == "▲ STUCK ranks 0 and 1 wait for each other: 5.0 s in all_reduce #17"


def test_waits_of_a_moment_are_not_late(opened):
    answer = answers.ring(4, 2)
    wait = {"operation": "all_reduce of 4 f32, sum (operation 17)", "group": "world", "sequence": 17, "more": 0}
    waits = {"it has not called it": 0.9, None: 2.9}
    answer["waits"] = [
        wait | {"for": "rank 0", "by": ["rank 1"], "seconds": seconds, "why": why} for why, seconds in waits.items()
    ]
    _, sheet = opened(answer)
    assert sheet.text("#late") == "✓ nobody is late"


def test_a_reducer_alone_says_whose_part_it_lacks(opened):
    answer = answers.recorded("reducer")
    operation = {"name": "all_reduce of 4 f32, sum (operation 9)", "group": "world", "sequence": 9, "seconds": 4.0, "runs": True}
    answer["members"][0]["jobs"][0]["operations"] = [operation | {"waits_for": ["rank 2"]}]
    _, sheet = opened(answer)
    assert sheet.text(LATE) == "▲ LATE job 220180c67af6325d waits for rank 2: 4.0 s in all_reduce #9"


def test_a_job_that_forms_says_who_is_missing(opened):
    forms = {"role": "worker", "rank": None, "address": "10.0.0.1:29400", "answers": True, "host": "a", "process": 1}
    answer = {"job": None, "epoch": None, "world": None, "waits": [], "silent_seconds": None, "asked_at": 1.0, "own": ""}
    _, sheet = opened(answer | {"members": [forms | {"forms": True, "world": 4, "missing": [2, 3]}]})
    assert sheet.text("#head") == "a job of 4 ranks is forming: ranks 2 and 3 missing"


def test_members_that_go_and_come_back_are_events(opened):
    site, sheet = opened(answers.recorded("job"))
    site.answer = answers.recorded("stopped")
    sheet.within(5, "document.querySelector('#events').innerText.includes('rank 2 does not answer: no answer for 1 s')")
    site.answer = answers.recorded("job")
    sheet.within(5, "document.querySelector('#events').innerText.includes('rank 2 answers again')")
    assert sheet.text("#late") == "✓ nobody is late"
    lines = [line.split(" ", 1)[1] for line in sheet.text("#events").splitlines() if line]
    assert lines[0].startswith("no longer: rank 2 keeps ranks 0, 1 and 3") or "answers again" in lines[0]
    assert lines[-1].startswith("first answer: job 220180c67af6325d")


def test_a_reducer_that_is_killed_is_lost_for_a_while(opened):
    site, sheet = opened(answers.recorded("two"))
    site.answer = answers.recorded("killed")
    sheet.within(5, "document.querySelector('#late').innerText.includes('LOST')")
    assert "reducer 127.0.0.1:39715 is lost: its connection was closed" in sheet.text(LATE)
    assert "× lost" in sheet.text("#members tbody tr:first-child")
    assert sheet.page.locator("#map .member.lost").count() == 1
    assert "the job is re-formed: epoch 1" in sheet.text("#events")
    sheet.picture("reducer-killed")


def test_a_rank_that_joins_and_one_that_leaves(opened):
    whole, part = answers.ring(6, 2), answers.ring(6, 2)
    part["members"].pop()
    site, sheet = opened(part)
    site.answer = whole
    sheet.within(5, "document.querySelector('#events').innerText.includes('rank 5 has joined')")
    site.answer = part
    sheet.within(5, "document.querySelector('#events').innerText.includes('rank 5 has left')")
    assert sheet.text("#late") == "✓ nobody is late"


def test_a_page_at_a_reducer_shows_its_jobs(opened):
    _, sheet = opened(answers.recorded("reducer"))
    assert sheet.text("#head") == "a reducer: 1 job now, 1 since its start"
    assert "220180c67af6325d" in sheet.text("#jobs") and "4 of 4" in sheet.text("#jobs")
    assert sheet.page.locator("#map .member").count() == 5
    assert len(sheet.page.locator("#map .link").all()) == 8


def test_a_reducer_of_several_jobs_shows_the_one_that_is_chosen(opened):
    answer = answers.recorded("reducer")
    site, sheet = opened(answer | {"jobs": ["220180c67af6325d"]})
    sheet.within(5, "document.querySelector('#map .member')")
    assert not sheet.page.locator("#job").is_visible()
    site.answer = answer | {"jobs": ["220180c67af6325d", "00000000000000ff"]}
    sheet.within(5, "document.querySelectorAll('#job option').length === 3")
    sheet.page.select_option("#job", "00000000000000ff")
    sheet.within(5, "location.search === '?job=00000000000000ff'")
    sheet.page.wait_for_timeout(1500)
    assert site.query == "job=00000000000000ff"


def test_tables_of_a_parameter_server(opened):
    _, sheet = opened(answers.recorded("tables"))
    row = sheet.page.locator("#tables tbody tr").first.inner_text().split("\t")
    assert row == [
        "embedding",
        "dense f32 x 16, async, adagrad",
        "100,000 of 100,000",
        "26.4 MB",
        "2",
        "84",
        "rank 1: 79",
        "0",
        "0",
    ]
    assert "4.4 %" in sheet.text("#tables") and "26.4 MB of 37.9 GB in use" in sheet.text("#tables")


def test_names_from_the_network_are_text(opened):
    _, sheet = opened(answers.hostile())
    sheet.page.wait_for_timeout(1500)
    assert sheet.page.locator("img").count() == 0 and sheet.page.locator("script").count() == 1
    assert answers.HOSTILE in sheet.text("#late") and answers.HOSTILE in sheet.text("#tables")
    # Neither what turns a text around nor what nobody sees is left in it.
    assert not {"\u202e", "\u0007"} & {*sheet.page.inner_text("body")}
    assert "�evil�" in sheet.text("#map")


@pytest.mark.parametrize(("ranks", "hosts"), [(1024, 128), (1024, 1024), (1024, 1)])
def test_a_thousand_ranks_do_not_freeze_the_page(opened, ranks, hosts):
    site, sheet = opened(stopped(ranks, hosts))
    assert sheet.text(LATE).startswith("▲ LATE rank 9 keeps ranks 0-8 and 10-1023 waiting")
    assert sheet.page.locator("#members tbody tr").count() == 64
    assert "and 960 more" in sheet.text("#members")
    # The longest that a frame waits for the script, over three answers.
    longest = sheet.page.evaluate("""() => new Promise((done) => {
        let [last, longest] = [performance.now(), 0];
        const end = last + 3500;
        const frame = () => {
            const now = performance.now();
            longest = Math.max(longest, now - last);
            last = now;
            if (now < end) setTimeout(frame, 5); else done(longest);
        };
        frame();
    })""")
    assert longest < 500 and site.asked >= 3, longest
    sheet.page.fill("#search", "rank 77")
    sheet.within(2, "document.querySelectorAll('#members tbody tr').length === 1")
    assert sheet.text("#members tbody th") == "rank 77"


def test_a_server_that_is_gone_is_said_in_red_and_the_last_picture_stays(opened):
    site, sheet = opened(answers.recorded("job"))
    site.hangs.set()
    sheet.within(7, "/^▲ no answer for [3-6] s/.test(document.querySelector('#fresh').innerText)")
    assert sheet.page.get_attribute("#fresh", "class") == "alarm"
    assert sheet.page.locator("#members tbody tr").count() == 5
    sheet.picture("no-answer")
    site.hangs.clear()
    sheet.within(10, "document.querySelector('#fresh').innerText.startsWith('live')")
    assert "answers again" in sheet.text("#events")


def test_an_answer_that_is_given_again_is_not_a_new_one(opened):
    site, sheet = opened(answers.recorded("job"))
    site.is_alive = False
    sheet.within(8, "document.querySelector('#fresh').innerText.startsWith('▲ no answer for')")
    site.is_alive = True
    sheet.within(5, "document.querySelector('#fresh').innerText.startsWith('live')")


def test_a_token_is_asked_for_kept_for_the_session_and_sent(browser):
    site, sheet = rig.Site(None), rig.Sheet(browser)
    site.behind_token = answers.recorded("job")
    try:
        sheet.page.goto(site.address)
        sheet.page.wait_for_selector("#login:not([hidden])")
        asked = site.asked
        sheet.page.fill("#token", "another one")
        sheet.page.keyboard.press("Enter")
        sheet.within(5, "document.querySelector('#refused').innerText !== ''")
        sheet.picture("token")
        sheet.page.fill("#token", site.token)
        sheet.page.click("#login button")
        sheet.page.wait_for_selector("#main:not([hidden])")
        assert "4 workers" in sheet.text("#head") and site.asked >= asked + 2
        sheet.page.reload()
        sheet.page.wait_for_selector("#main:not([hidden])")
        assert sheet.page.evaluate("Object.keys(localStorage).length") == 0
    finally:
        complaints = sheet.close()
        site.close()
    assert [text for text in complaints if "401" not in text] == []


def test_a_page_that_nobody_sees_asks_nothing(opened):
    site, sheet = opened(answers.recorded("job"))
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); document.dispatchEvent(new Event('visibilitychange'))"
    sheet.page.evaluate(hide.format("true"))
    sheet.page.wait_for_timeout(1500)
    asked = site.asked
    sheet.page.wait_for_timeout(3000)
    assert site.asked == asked
    sheet.page.evaluate(hide.format("false"))
    sheet.page.wait_for_timeout(1500)
    assert site.asked > asked and sheet.text("#fresh").startswith("live")


def test_the_keyboard_reaches_all_that_scrolls(opened):
    _, sheet = opened(answers.recorded("tables"), width=360, height=740)
    reached = set()
    for _ in range(12):
        sheet.page.keyboard.press("Tab")
        reached.add(sheet.page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))
    assert {"Members: a table", "Tables: a table", "Ranges: a table", "Hot keys: a table", "Events"} <= reached


def test_charts_begin_with_what_the_process_remembers(opened):
    _, sheet = opened(answers.recorded("two", history=True))
    label = sheet.page.get_attribute("#now svg", "aria-label")
    assert label.startswith("bytes per second sent by all members: now ") and "in the last 5 minutes" in label
    assert sheet.page.locator("#members .chart").count() == 6
