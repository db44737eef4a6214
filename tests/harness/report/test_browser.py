"""The page in a browser without a window: rendering, filters, sorting, keyboard and contrast."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvassay.harness.record import Record
from kvassay.harness.report.building import page

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: {' or '.join(NAMES)}")
RESULTS = Path(__file__).parents[3] / "results"
WIDE, PHONE = {"width": 1300, "height": 900}, {"width": 375, "height": 700}
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = channels(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const worst = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest("svg, option, dialog:not([open])")) continue;
    const pair = [light(channels(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) worst.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return [...new Set(worst)];
}"""
"""Text with less contrast than WCAG 2 AA asks for (4.5 to 1)."""


@pytest.fixture
def file(records: list[Record], tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    path.write_text(page(records, RESULTS), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=BROWSER, chromium_sandbox=False)
        yield started
        started.close()


def opened(
    browser: Any, file: str, said: list[str], scheme: str = "light", size: Any = WIDE
) -> Any:
    tab = browser.new_context(color_scheme=scheme, viewport=size, offline=True).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(file)
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_reads_on_light_and_dark(browser: Any, file: str, scheme: str) -> None:
    said: list[str] = []
    tab = opened(browser, file, said, scheme)
    assert tab.evaluate(CONTRAST) == []
    tab.add_style_tag(content="main { --soft: #808080; --paper: #808080; background: #808080; }")
    assert tab.evaluate(CONTRAST)  # or it would not have looked
    assert said == []


def test_it_fits_a_phone(browser: Any, file: str) -> None:
    tab = opened(browser, file, [], size=PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_filters_leave_what_matches(browser: Any, file: str) -> None:
    said: list[str] = []
    tab = opened(browser, file, said)
    rows = "#matrix tbody tr:not([hidden])"
    assert tab.locator(rows).count() == 4
    tab.fill("input[name=row] >> nth=0", "conserv")
    assert tab.locator(rows).count() == 1
    tab.fill("input[name=row] >> nth=0", "")
    tab.select_option("select[name=status]", "fail")
    assert tab.locator(rows).all_inner_texts()[0].startswith("A1")
    tab.fill("input[name=column]", "other")
    assert tab.locator(rows).count() == 0
    assert tab.locator("#matrix thead th[data-column]:not([hidden])").count() == 1
    assert said == []


def test_a_heading_sorts_and_sorts_back(browser: Any, file: str) -> None:
    tab = opened(browser, file, [])
    first = "#matrix tbody tr >> nth=0"
    heading = "#matrix thead th >> nth=0"
    tab.click(f"{heading} >> button")
    assert tab.inner_text(first).startswith("A1")
    tab.click(f"{heading} >> button")
    assert tab.inner_text(first).startswith("P9")
    assert tab.get_attribute(heading, "aria-sort") == "descending"


def test_a_cell_opens_by_keyboard_and_gives_the_focus_back(browser: Any, file: str) -> None:
    said: list[str] = []
    tab = opened(browser, file, said)
    cell = "#matrix td.fail button"
    tab.focus(cell)
    tab.keyboard.press("Enter")
    dialog = tab.locator("dialog[open]")
    assert "3[ 1 2 ]" in dialog.inner_text()
    assert "kvassay replay mine-A1.json" in dialog.inner_text()
    tab.keyboard.press("Escape")
    assert tab.locator("dialog[open]").count() == 0
    assert tab.evaluate(f"document.activeElement === document.querySelector('{cell}')")
    assert said == []
