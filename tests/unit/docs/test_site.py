"""The pages as a site: links of the repository lead within it, and its menu has the front pages' questions."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
import yaml
from support.repository import ROOT


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("place", "link", "moved"),
    [
        ("index.md", "docs/first-run.md#next", "first-run.md#next"),
        ("index.md", "README.zh-CN.md", "zh/index.md"),
        ("index.md", "docs/images/report.png", "images/report.png"),
        ("index.md", "SECURITY.md", "SECURITY.md"),
        ("zh/index.md", "docs/zh/data.md", "data.md"),
        ("zh/index.md", "docs/columns.md", "../columns.md"),
        ("zh/index.md", "README.md", "../index.md"),
        ("CHANGELOG.md", "docs/study.md", "study.md"),
        ("data.md", "../SECURITY.md#files-of-a-fine-tuning", "SECURITY.md#files-of-a-fine-tuning"),
        ("zh/data.md", "../../SECURITY.md", "../SECURITY.md"),
        ("zh/data.md", "../columns.md", "../columns.md"),
        ("data.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("data.md", "#splits", "#splits"),
    ],
)
def test_a_link_of_the_repository_leads_within_the_site(place: str, link: str, moved: str, hooks: ModuleType) -> None:
    assert hooks.moved(f"see [it]({link}).", place) == f"see [it]({moved})."


def test_the_menu_has_the_questions_of_the_front_pages_and_pages_that_are_there(hooks: ModuleType) -> None:
    english, chinese = hooks.menu("README.md"), hooks.menu("README.zh-CN.md", "zh/")
    assert {"How do I start?": [{"First run": "first-run.md"}]} in english
    assert len(english) > 20
    assert {"怎样开始？": [{"首次运行": "zh/first-run.md"}]} in chinese
    for entry in (*english, *chinese):
        for page in next(iter(entry.values())):
            place = next(iter(page.values()))
            assert (ROOT / hooks.SOURCES.get(place, f"docs/{place}")).is_file()


def test_pages_that_are_no_more_lead_to_headings_that_are_there(hooks: ModuleType) -> None:
    for place, target in hooks.MOVED.items():
        page, _, heading = target.partition("#")
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        headings = re.findall("^#+ (.*)$", text, re.MULTILINE)
        assert not (ROOT / "docs" / place).exists()
        assert heading in ("", *(hooks.anchor(each, "-") for each in headings)), target
    assert 'content="0; url=ascend.html#a"' in hooks.forwarding("zh/old.md", "zh/ascend.md#a")
    assert 'content="0; url=../ascend.html"' in hooks.forwarding("zh/old.md", "ascend.md")


def test_the_sites_configuration_checks_links_and_searches_both_languages() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {config["validation"]["links"][what] for what in ("not_found", "anchors")} == {"warn"}
    assert config["plugins"] == [{"search": {"lang": ["en", "zh"], "min_search_length": 2}}]


def test_the_search_gets_every_chinese_word_of_two_to_four_characters(hooks: ModuleType) -> None:
    assert hooks.chinese_words("the 滑动窗口, 再滑动") == [
        "滑动",
        "动窗",
        "窗口",
        "滑动窗",
        "动窗口",
        "滑动窗口",
        "再滑",
        "再滑动",
    ]


def test_headings_have_the_anchors_of_github(hooks: ModuleType) -> None:
    assert hooks.anchor("Weights & Biases, Prometheus", "-") == "weights--biases-prometheus"
    assert hooks.anchor("什么在哪里运行过", "-") == "什么在哪里运行过"
