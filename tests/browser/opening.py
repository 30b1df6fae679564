"""One Chromium for all checks here, and pages in it; a plugin of pytest."""

import contextlib

import pytest
import rig


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium."""
    with rig.chromium() as chromium:
        yield chromium


@pytest.fixture
def opened(browser):
    """Opens the page with an answer of a job, as often as asked; in the end no page may have a complaint of Chromium."""
    with contextlib.ExitStack() as stack:
        sheets = []

        def open_page(answer, **window):
            site = rig.Site(answer)
            stack.callback(site.close)
            sheets.append(rig.Sheet(browser, **window))
            return site, sheets[-1].open(site.address)

        yield open_page
        complaints = [complaint for sheet in sheets for complaint in sheet.close()]
    assert complaints == []
