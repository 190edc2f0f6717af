"""What mkdocs.yml asks of the pages: the front pages join them, links lead within the site, and the menu is theirs."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    **{"README.md": "index.md", "README.zh-CN.md": "zh/index.md"},
    **{name: name for name in ("CHANGELOG.md", "SECURITY.md", "CITATION.cff")},
}
"""File of the repository outside docs/ → its place in the site."""
SOURCES = {place: name for name, place in PLACES.items()}
MOVED = {
    "ascend-troubleshooting.md": "ascend.md#troubleshooting",
    "branches.md": "sweeps.md#trunks-and-branches",
    "chat-tasks.md": "tasks.md",
    "columns-run.md": "conditions.md#what-was-run",
    "configuration-measurement.md": "configuration.md",
    "finetuning-measured.md": "benchmarks-data.md#a-curriculum",
    "long-context.md": "tasks.md#long-contexts",
    "megatron-0.19.md": "versions.md#megatron-core-019-facts-of-a-trial",
    "python.md": "measure-your-loop.md",
    "torch-versions.md": "versions.md",
    "variants-layer.md": "variants.md#the-layer",
    "zh/ascend-troubleshooting.md": "zh/ascend.md#故障排除",
    "zh/finetuning-measured.md": "zh/finetuning.md#测量结果",
}
"""Place of a page that is no more → where its text is now."""
LINK = re.compile(r"(\]\()([^)\s]+)\)")
HAN = re.compile("[\u4e00-\u9fff]+")
LONGEST_WORD = 4
"""Most characters of a Chinese word that the search finds."""
SHOWN = 200
"""Characters of a section that the search shows."""


def on_config(config: Any) -> Any:
    """Make the menu, and give headings the anchors that GitHub gives them."""
    chinese = [{"首页": "zh/index.md"}, *menu("README.zh-CN.md", "zh/")]
    config.nav = [{"EfficientBench": "index.md"}, *menu("README.md"), {"简体中文": chinese}]
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for name, place in PLACES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **unused: Any) -> str:
    """Return a page with links to places in the site."""
    return moved(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Lead from pages that are no more to their text, and let the search find Chinese words.

    Nothing sets these apart: the index gets all that may be one.
    """
    for place, target in MOVED.items():
        (Path(config.site_dir) / place).with_suffix(".html").write_text(forwarding(place, target), encoding="utf-8")
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for section in index["docs"]:
        words = chinese_words(f"{section['title']} {section['text']}")
        if words:
            section["text"] = f"{section['text'].ljust(SHOWN)} {' '.join(words)}"
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def forwarding(place: str, target: str) -> str:
    """Return the page that leads a browser from a place of the site to a page and heading there."""
    page, sign, heading = posixpath.relpath(target, posixpath.dirname(place) or ".").partition("#")
    url = f"{page.removesuffix('.md')}.html{sign}{heading}"
    refresh = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">'
    return f'<!doctype html>{refresh}<a href="{url}">{url}</a>\n'


def chinese_words(text: str) -> list[str]:
    """Return each run of 2 to LONGEST_WORD Chinese characters in a text once."""
    found = {
        run[begin : begin + length]: None
        for run in HAN.findall(text)
        for length in range(2, LONGEST_WORD + 1)
        for begin in range(len(run) - length + 1)
    }
    return list(found)


def moved(markdown: str, place: str) -> str:
    """Return the text of the page at a place in the site, with its links into the repository led to their places."""
    source = SOURCES.get(place, f"docs/{place}")

    def link(match: re.Match[str]) -> str:
        path, sign, heading = match[2].partition("#")
        if not path or ":" in path:
            return match[0]
        target = site_place(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(place) or '.')}{sign}{heading})"

    return LINK.sub(link, markdown)


def site_place(path: str) -> str:
    """Return the place in the site of a file of the repository."""
    return PLACES.get(path, path.removeprefix("docs/"))


def menu(front_page: str, below: str = "") -> list[dict[str, list[dict[str, str]]]]:
    """Return each question of a front page's table with its pages below a folder of the site; none without one."""
    text = (ROOT / front_page).read_text(encoding="utf-8")
    found = []
    for question, links in re.findall(r"^\| (.+?) \| (\[.+\)) \|$", text, re.MULTILINE):
        pages = [(title, site_place(path)) for title, path in re.findall(r"\[([^]]+)\]\(([^)]+\.md)\)", links)]
        own = [{title: path} for title, path in pages if path.startswith(below)]
        found += [{question: own}] if own else []
    return found


def anchor(heading: str, separator: str) -> str:
    """Return a heading's anchor as GitHub has it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)
