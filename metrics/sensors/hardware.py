"""Looks up the rates of devices: first in the user's own rows, which OWN_ROWS names, then in `hardware.yaml`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from efficientbench.basics.errors import MetricsError
from efficientbench.basics.foreign import parse_own_yaml, parse_yaml, read_text

TABLE = Path(__file__).with_name("hardware.yaml")
OWN_ROWS = "EFFICIENTBENCH_DEVICES"
"""Environment variable with the path of a YAML file: one `OwnRow`, or a list of them."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""Names of dtypes in torch → those of records and of the table."""
_MAKERS = frozenset({"nvidia", "geforce", "tesla"})
"""Words of drivers' device names that do not distinguish devices."""
_REMEDY = "give the device's dense peak in the configuration"


class OwnRow(BaseModel):
    """A row that a user gives, with its links; the keys are those of `hardware.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    match: str | None = None
    """Regular expression for the name that the driver reports; None: the name itself."""
    peak_tflops: dict[Literal["bf16", "fp16", "tf32", "fp32"], PositiveFloat]
    memory_bandwidth_gb_s: PositiveFloat
    memory_gb: PositiveFloat | None = None
    tdp_w: PositiveFloat | None = None
    """The most power that the device takes, in watts."""
    backend: str | None = None
    """Library of collectives, one that `hardware.yaml` names; None: the first that it names."""
    in_node_gb_s: PositiveFloat
    between_nodes_gb_s: PositiveFloat | None = None
    source: str | None = None
    """Where the rates come from; None: the path of the user's file."""


@dataclass(frozen=True)
class KnownDevice:
    """The facts of a device's row that do not depend on a dtype."""

    name: str
    backend: str
    """The library of collectives that uses its links."""
    memory_bytes: float | None
    """Capacity; None if the name does not settle it."""
    tdp_w: float | None
    """The most power that it takes, in watts; None if no datasheet settles it."""
    usual_count: int
    """Devices of a usual machine: 8 of those that a vendor's system joins by a network, else 1."""


@dataclass(frozen=True)
class DeviceRates:
    """Peak rates of one device: dense compute, memory, and links in one direction."""

    name: str
    backend: str
    """The library of collectives that uses its links."""
    peak_flops: float
    """Dense FLOP/s in the requested dtype."""
    memory_bytes_s: float
    memory_bytes: float | None
    """Capacity; None if the name does not settle it."""
    in_node_bytes_s: float
    """Bandwidth of its links to the other devices of its node, bytes/s."""
    between_nodes_bytes_s: float | None
    """Its share of the node's network bandwidth, bytes/s; None if no reference system settles it."""
    sources: tuple[str, ...]


def peak_flops(device_name: str, dtype: str) -> tuple[float | None, str]:
    """Return the dense peak of one device, FLOP/s.

    Args:
        device_name: the device's name as the driver reports it, such as 'NVIDIA A100-SXM4-80GB'.
        dtype: the dtype of the matrix products: 'bf16', 'fp16', 'tf32', 'fp32', or torch's own names.

    Returns:
        (peak in FLOP/s, the datasheet it comes from), or (None, why it is unknown).
    """
    row, reason = _official(device_name)
    if row is None:
        return None, f"{reason or f'the peak of {device_name!r} is not in the hardware table'}: {_REMEDY}"
    try:
        return _peak_flops(row, dtype), row["source"]
    except MetricsError as error:
        return None, str(error)


def memory_bandwidth(device_name: str) -> tuple[float | None, str]:
    """Return the peak bandwidth of one device's memory, bytes a second, and its datasheet; or None and why.

    `device_name` is the device's name as the driver reports it.
    """
    row, reason = _official(device_name)
    if row is None:
        return None, reason or f"the memory bandwidth of '{device_name}' is not in the hardware table"
    return row["memory_bandwidth_gb_s"] * 1e9, row["source"]


def known_device(name: str) -> KnownDevice:
    """Return what the table says of a device, by a name that `device_rates` takes.

    Raises MetricsError: the table has no such device, or several.
    """
    row = _row(name)
    links, memory_bytes = _links(row), row["memory_gb"] and row["memory_gb"] * 1e9
    count = 8 if links["between_nodes_gb_s"] else 1
    return KnownDevice(row["name"], links["backend"], memory_bytes, row.get("tdp_w"), count)


def device_rates(name: str, dtype: str, peak: float | None = None) -> DeviceRates:
    """Return the row of a device by its name in the table or as the driver reports it.

    Args:
        name: a name in any case, such as 'H100 SXM' or 'h200_sxm', words that name the chip of one row alone, or the
            driver's name, such as 'NVIDIA H100 80GB HBM3'.
        dtype: the dtype of the matrix products, as for `peak_flops`.
        peak: dense FLOP/s to use instead of the table's.

    Raises:
        MetricsError: the table has no such device, or several, or lacks its peak in that dtype.
    """
    row = _row(name)
    links, source = _links(row), row["source"]
    if span := row.get("unofficial_tflops"):
        source = f"{_span(span)} are in use for {row['name']}, UNOFFICIAL: {source}"
    network = links["between_nodes_gb_s"]
    return DeviceRates(
        name=row["name"],
        backend=links["backend"],
        peak_flops=peak or _peak_flops(row, dtype),
        memory_bytes_s=row["memory_bandwidth_gb_s"] * 1e9,
        memory_bytes=row["memory_gb"] and row["memory_gb"] * 1e9,
        in_node_bytes_s=links["in_node_gb_s"] * 1e9,
        between_nodes_bytes_s=network and network * 1e9,
        sources=("peak given" if peak else source, links["source"]),
    )


def _official(device_name: str) -> tuple[dict[str, Any] | None, str]:
    """Return the row of a driver's name if a datasheet or the user settles it, else why not; '' if there is none."""
    row = _matching("devices", device_name)
    if row is None:
        undetermined = _matching("undetermined", device_name)
        return None, undetermined["reason"] if undetermined else ""
    if span := row.get("unofficial_tflops"):
        return None, f"no datasheet settles the rates of {row['name']} ({_span(span)} are in use; {row['source']})"
    return row, ""


def _span(tflops: list[float]) -> str:
    low, high = tflops
    return f"{low:g} TFLOP/s" if low == high else f"{low:g} to {high:g} TFLOP/s"


def _links(row: dict[str, Any]) -> dict[str, Any]:
    return next(links for links in _rows("links") if row["name"] in links["devices"])


def _row(name: str) -> dict[str, Any]:
    """Return the row of a device's name, as the driver or a user writes it. Raises MetricsError: no row, or several."""
    row = _matching("devices", name) or _named(name)
    if row is not None:
        return row
    names = [row["name"] for row in _rows("devices")]
    undetermined = _matching("undetermined", name) or _matching("undetermined", f"Ascend {name}")
    if undetermined:
        several = [each for each in names if name.strip().lower() in each.lower()]
        raise MetricsError(f"'{name}': {undetermined['reason']}: name one of {', '.join(several or names)}")
    near = _near(name)
    hint = f"; did you mean '{near}'?" if near else ""
    where = f"the table of devices ({', '.join(names)}) or a file of your own ({OWN_ROWS}=FILE)"
    raise MetricsError(f"'{name}' is not in {where}{hint}")


def _words(name: str) -> list[str]:
    apart = re.sub(r"^(rtx|ascend)(?=\d)", r"\1 ", name.replace("_", " ").strip().lower())
    return [word for word in apart.split() if word not in _MAKERS]


def _chip(words: Sequence[str]) -> str:
    """Return the word that names the chip, which is the first with a digit; '' if there is none."""
    return next((word for word in words if re.search(r"\d", word)), "")


def _named(name: str) -> dict[str, Any] | None:
    """Return the row with this name, in any case, or the only row that its words can mean.

    Raises MetricsError: the words can mean several rows.
    """
    words, rows = _words(name), _rows("devices")
    found = [row for row in rows if _words(row["name"]) == words]
    found = found or [row for row in rows if _stand_for(words, _words(row["name"]))]
    if len(found) > 1:
        raise MetricsError(f"'{name}' is several devices: name one of {', '.join(row['name'] for row in found)}")
    return found[0] if found else None


def _stand_for(words: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether all words are a row's, and suffice to distinguish it from cards that the table lacks.

    The words must name the row's chip. If the chip is a mere number, no word after it may be missing: an RTX 6000 is
    no RTX 6000 Ada.
    """
    chip = _chip(row)
    further = row[row.index(chip) + 1 :] if chip.isdigit() else []
    return {chip, *further} <= set(words) <= set(row)


def _near(name: str) -> str | None:
    """Return the name of the row that a mistyped one may mean; None rather than another card's.

    The row has the same chip, and a word like each word of `name`. A name that has all words of a row and more names
    another card, such as RTX 4090 Laptop.
    """
    words, names = _words(name), [row["name"] for row in _rows("devices")]
    alike = [
        each
        for each in names
        if _chip(words) == _chip(_words(each))
        and not set(_words(each)) <= set(words)
        and words
        and all(difflib.get_close_matches(word, _words(each)) for word in words)
    ]
    return next(iter(difflib.get_close_matches(name, alike, n=1, cutoff=0)), None)


def _matching(part: str, device_name: str) -> dict[str, Any] | None:
    """Return the row, in a part of the table, whose pattern matches the driver's name of a device."""
    name = re.sub("^NVIDIA ", "", device_name.strip(), flags=re.IGNORECASE)
    return next((row for row in _rows(part) if re.fullmatch(row["match"], name, re.IGNORECASE)), None)


def _peak_flops(row: dict[str, Any], dtype: str) -> float:
    tflops = row["peak_tflops"].get(DTYPES.get(dtype.removeprefix("torch."), dtype))
    if tflops is None:
        known = ", ".join(row["peak_tflops"])
        raise MetricsError(f"the peak of {row['name']} in {dtype} is not known (known: {known}): {_REMEDY}")
    return float(tflops * 1e12)


def _rows(part: str) -> list[dict[str, Any]]:
    """Return the rows of a part of the table, the user's own first."""
    own = os.environ.get(OWN_ROWS)
    return [*(_own_table(own).get(part, []) if own else []), *_table()[part]]


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, Any]]]:
    return parse_own_yaml(TABLE.read_text())


@lru_cache(maxsize=1)
def _own_table(path: str) -> dict[str, list[dict[str, Any]]]:
    """Read a user's rows as parts of the table. Raises MetricsError: the file cannot be read, or a row is wrong."""
    try:
        content = parse_yaml(read_text(Path(path)))
        rows = [OwnRow.model_validate(row) for row in (content if isinstance(content, list) else [content])]
        for row in rows:
            re.compile(row.match or "")
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise MetricsError(f"{OWN_ROWS}={path}: no row of a device: {wrong}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, re.error) as error:
        raise MetricsError(f"{OWN_ROWS}={path}: cannot be read ({error})") from None
    backends = list(dict.fromkeys(links["backend"] for links in _table()["links"]))
    if unknown := [row.backend for row in rows if row.backend not in (None, *backends)]:
        raise MetricsError(f"{OWN_ROWS}={path}: backend: {unknown[0]!r} is none of {', '.join(backends)}")
    whole = [
        {
            **row.model_dump(),
            "match": row.match or re.escape(row.name),
            "source": row.source or path,
            "backend": row.backend or backends[0],
            "devices": [row.name],
        }
        for row in rows
    ]
    return {"devices": whole, "links": whole}
