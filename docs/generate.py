"""Fill the marked blocks of README*.md and docs/ from the code and docs/measured/*.json; write the generated files.

    python docs/generate.py            # rewrite the files that are out of date
    python docs/generate.py --check    # write nothing; exit with 1 and name the files that are out of date

The files are docs/*.schema.json and metrics/records/layers.yaml.
A block lies between `<!-- generated: NAME ARGUMENT... -->` and `<!-- end -->`. It may lie within a line.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DataclassSchema, ModelSchema

from efficientbench.basics.language import TABLE
from efficientbench.config import combination_table
from efficientbench.config.load import resolve
from efficientbench.config.matrix import load_matrix
from efficientbench.config.schema import RunConfig
from efficientbench.config.spellings import SPELLINGS, key_of
from efficientbench.costs.model import STATE_TOKENS, cache_bytes, count_parameters, flops_per_token, keys_read_per_query
from efficientbench.finetuning.config import FinetuneConfig
from efficientbench.metrics.records.figure import rows_of
from efficientbench.metrics.records.figures import Identity
from efficientbench.metrics.records.generation.generation import GenerationRecord, Phase, RowFigures
from efficientbench.metrics.records.other_layers import layers_of
from efficientbench.metrics.records.record import RunRecord
from efficientbench.metrics.report.columns import COLUMNS
from efficientbench.metrics.report.sections.rank_table import PARTS as WALL_TIME
from efficientbench.studies.answer import Answer

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
SCHEMAS: dict[Path, type] = {
    ROOT / "docs" / "record.schema.json": RunRecord,
    ROOT / "docs" / "generation.schema.json": GenerationRecord,
    ROOT / "docs" / "study.schema.json": Answer,
}
LAYERS = ROOT / "metrics" / "records" / "layers.yaml"
BLOCK = re.compile(r"(<!-- generated: ([^>]+?) -->)(.*?)(<!-- end -->)", re.DOTALL)
CHINESE = yaml.safe_load((ROOT / "docs" / "chinese.yaml").read_text(encoding="utf-8"))
"""Chinese translations of the blocks' English: of table cells, of phrases in other lines, and by patterns."""
SAID = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["messages"]
"""The Chinese of what commands say, which a table may quote."""
OPTIMIZATION = frozenset(
    f"training.{key}"
    for key in (
        *("optimizer", "learning_rate", "matrix_learning_rate", "embedding_learning_rate", "head_learning_rate"),
        *("min_learning_rate", "lr_scale", "lr_schedule", "lr_warmup_fraction", "lr_warmup_tokens"),
        *("lr_decay_fraction",),
        *("weight_decay", "beta1", "beta2", "epsilon", "gradient_clip"),
    )
)
"""Keys of `training` that have a page of their own, as if `optimization` were a part of the configuration."""
TYPES = {
    **{"integer": "integer", "number": "number", "boolean": "true, false", "string": "text"},
    **{"array": "list", "object": "mapping"},
}
"""Type in a JSON schema → the reader's word for it."""


class NotMeasuredError(Exception):
    """A script of tests/benchmarks has not been run with `--write`; the message is for the page."""


def pages() -> list[Path]:
    """Return every page that may hold blocks."""
    return [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def filled(page: Path) -> str:
    """Return the text of `page` with every block filled again."""
    in_chinese = "zh" in page.relative_to(ROOT).parts or page.name.endswith(".zh-CN.md")

    def fill(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        try:
            text = BLOCKS[name](*arguments)
        except NotMeasuredError as error:
            text = str(error)
        if in_chinese:
            text = "\n".join(_in_chinese(line) for line in text.split("\n"))
        apart = "\n" in text or "\n" in match[3]
        return match[1] + (f"\n\n{text}\n\n" if apart else text) + match[4]

    return BLOCK.sub(fill, page.read_text(encoding="utf-8"))


def keys(*parts: str) -> str:
    """Return a table of the configuration's keys in `parts`; `run` means the keys that are in no part."""
    return _key_table(RunConfig.model_json_schema(), parts)


def tuning_keys(*parts: str) -> str:
    """Return a table of a fine-tuning's keys in `parts`."""
    return _key_table(FinetuneConfig.model_json_schema(), parts)


def _key_table(root: dict[str, Any], parts: Sequence[str]) -> str:
    kinds: dict[tuple[str, ...], list[str]] = {}
    for part, key, schema in _keys(root):
        if part in parts:
            default = "required" if "default" not in schema else f"`{_plain(schema['default'])}`"
            default = "unset" if schema.get("default", "") is None else default
            name, _, kind = key.partition(" ")
            # Kinds that mean the same by a key share its row.
            kinds.setdefault((f"`{name}`", _type(schema), default, schema["description"]), []).append(kind.strip("()"))
    rows = [[f"{key} ({', '.join(of)})" if any(of) else key, *cells] for (key, *cells), of in kinds.items()]
    return _table(["key", "type", "default", "meaning"], rows)


def spellings() -> str:
    """Return a table of the names in other projects, and of what they mean in trainings and in fine-tunings."""

    def cell(meaning: str) -> str:
        return f"`{meaning.replace('{}', 'N')}`" if key_of(meaning) else meaning or "–"

    rows = []
    for each in SPELLINGS:
        names = ", ".join(f"`{name}`" for name in each.names.split())
        rows.append([names, cell(each.training), "the same" if each.tuning == each.training else cell(each.tuning)])
    return _table(["there", "training", "fine-tuning"], rows)


def parameters() -> str:
    """Return a table of the parameters of every run of the matrix, and of its training FLOPs per token."""
    rows = []
    for run in load_matrix().runs:
        config = resolve(run.name)
        counted = count_parameters(config.model)
        flops = flops_per_token(config.model, config.training.seq_len, config.training.recompute)
        rows.append([f"`{run.name}`", f"{counted.total:,}", f"{counted.active:,}", f"{flops.training:,.0f}"])
    return _table(["run", "parameters", "active", "FLOPs per token"], rows)


def planned(name: str, figure: str) -> str:
    """Return one figure of a run of the matrix: its parameters, or the keys that a query reads."""
    config = resolve(name)
    if figure == "parameters":
        return f"{count_parameters(config.model).total:,}"
    return f"{keys_read_per_query(config.model, config.training.seq_len):,.0f}"


def runs() -> str:
    """Return the number of the matrix's runs."""
    return str(len(load_matrix().runs))


def caches() -> str:
    """Return a table of the bytes that decoding caches for a sequence, for each attention variant at 1.5B."""
    rows = []
    for run in (run for run in load_matrix().runs if run.suite == "attention_variants" and run.size == "1.5B"):
        model = resolve(run.name).model
        sizes = [cache_bytes(model, tokens, "bf16") for tokens in (2048, 16384)]
        rows.append([f"`{run.name}`", *(f"{size:,}" for size in sizes)])
    return _table(["run", "2,048 tokens", "16,384 tokens"], rows)


STATES = {
    **dict.fromkeys(("gqa", "mqa", "mla", "nsa"), ()),
    "3:1, window 4,096": ("model.pattern=[swa,swa,swa,own]", "model.kinds.swa.attention.window=4096"),
    "5:1, window 1,024": ("model.pattern=[swa,swa,swa,swa,swa,own]", "model.kinds.swa.attention.window=1024"),
    "all, window 1,024": ("model.attention.window=1024",),
    "3:1, GDN": ("model.pattern=[gdn,gdn,gdn,own]",),
    "3:1, KDA and MLA": (
        *("model.attention.kind=mla", "model.position.kind=none"),
        "model.pattern=[kda,kda,kda,own]",
    ),
    "3:1, Mamba-2": ("model.pattern=[mamba2,mamba2,mamba2,own]",),
    "all, GDN": ("model.attention.kind=gdn", "model.position.kind=none"),
    "all, Mamba-2": ("model.attention.kind=mamba2", "model.position.kind=none"),
}
"""Rows of the table of states: a variant, or what is laid over gqa."""


def states() -> str:
    """Return a table of what decoding keeps of a sequence, for attention variants and patterns of layers at 1.5B."""
    rows = []
    for name, words in STATES.items():
        model = resolve("gqa_1.5B" if words else f"{name}_1.5B", overrides=words).model
        kept = [cache_bytes(model, tokens, "bf16") / 1e6 for tokens in STATE_TOKENS]
        rows.append([name, *(f"{size:,.0f}" for size in kept)])
    return _table(["layers", *(f"{tokens:,}" for tokens in STATE_TOKENS)], rows)


def sizes() -> str:
    """Return a table of the backbone's sizes."""
    rows = []
    for size in ("50M", "125M", "350M", "0.5B", "1.5B", "3B", "7B", "13B", "32B"):
        model = resolve(f"gqa_{size}").model
        shape = (model.layers, model.hidden_size, model.heads, model.head_dim, model.ffn_hidden_size, model.vocab_size)
        rows.append([size, *(f"{value:,}" for value in shape), "yes" if model.tied else "no"])
    return _table(["size", "layers", "hidden", "heads", "head dim", "FFN", "vocabulary", "tied"], rows)


FINETUNING = (
    "trainable_parameters",
    "examples_per_s",
    "st_samples_per_param_s",
    "energy_j_per_sample",
    "padding_share",
)
"""Columns that only fine-tunings fill; they stand on the page about fine-tuning."""
PARTS = {
    "run": tuple(Identity.model_fields),
    "finetuning": FINETUNING,
    "peak": ("mfu_of_measured_peak", "measured_peak_flops"),
    "wall": ("wall_s", "goodput", *WALL_TIME, "checkpoint_bound_s"),
    "idle": ("power_idle_w", "energy_net_j", "energy_net_j_per_token"),
}
"""Part → its columns, which do not stand with the others."""


def columns(part: str = "") -> str:
    """Return a table of the columns of `report.csv`: those of `part`, or those of no part if it is empty."""
    rows = [
        [f"`{name}`", column.unit, column.description, column.better or "", column.known_as]
        for name, column in COLUMNS.items()
        if (name in PARTS[part] if part else not any(name in names for names in PARTS.values()))
    ]
    return _table(["column", "unit", "meaning", "better", "known elsewhere as"], rows)


def generation_columns() -> str:
    """Return a table of the figures of a row in a generation record, and of each phase of the row."""
    rows = [
        [f"`{mark}{name}`", row.unit, row.description, row.better or "", row.known_as]
        for mark, table in (("", RowFigures), ("…_", Phase))
        for name, row in rows_of(table).items()
    ]
    return _table(["figure", "unit", "meaning", "better", "known elsewhere as"], rows)


class _OfRecords(GenerateJsonSchema):
    """A JSON schema without pydantic's titles, which repeat the fields' names, and with the fields' docstrings.

    pydantic's `use_attribute_docstrings` would read them from the source at the start of every run.
    """

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: ModelSchema) -> dict[str, Any]:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: DataclassSchema) -> dict[str, Any]:
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(schema: dict[str, Any], record: type) -> dict[str, Any]:
    """Return the JSON schema of a class whose fields without a description have their docstrings."""
    for base in reversed(record.__mro__):
        if base.__module__.startswith("efficientbench."):
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            for field, below in zip(definition.body, definition.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        if name in schema["properties"]:
                            schema["properties"][name].setdefault("description", inspect.cleandoc(text))
    return schema


def schema_of(record: type) -> str:
    """Return the JSON schema of a record, as a file's text."""
    schema = {
        "$schema": _OfRecords.schema_dialect,
        **TypeAdapter(record).json_schema(schema_generator=_OfRecords),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def measured(name: str) -> str:
    """Return a table of the figures of docs/measured/`name`.json, and below it how they were measured."""
    content = _measured(name)
    cells = [[each["what"], _value(each), _interval(each), _count(each)] for each in content["figures"].values()]
    source = f"`{content['script']}`, commit {content['commit']}"
    return f"{_table(['figure', 'value', 'interval', 'n'], cells)}\n\nMeasured on {how(name)} Script: {source}."


def rows(name: str, key: str = "rows") -> str:
    """Return the table that docs/measured/`name`.json holds as rows, or under another key."""
    found = _measured(name)[key]
    return _table(list(found[0]), [list(map(str, row.values())) for row in found])


def lines(name: str, key: str) -> str:
    """Return the texts that docs/measured/`name`.json holds under a key, a paragraph each."""
    return "\n\n".join(_measured(name)[key]) or "Nothing."


def span(name: str, *column: str) -> str:
    """Return the least and the greatest value of a column of the rows that docs/measured/`name`.json holds."""
    values = sorted((row[" ".join(column)] for row in _measured(name)["rows"]), key=float)
    return " to ".join(dict.fromkeys((values[0], values[-1])))


def how(name: str) -> str:
    """Return how the figures of docs/measured/`name`.json were measured, as one line."""
    content = _measured(name)
    where = f"{content['machine']}, {content['software']}, {content['date']}"
    about = [content[key].rstrip(".") for key in ("conditions", "note") if key in content]
    return f"{where}: {'. '.join(about)}."


def figure(name: str, *key: str) -> str:
    """Return one measured value with its unit."""
    return _value(_measured(name)["figures"][" ".join(key)])


def interval(name: str, *key: str) -> str:
    """Return the interval of one measured value."""
    return _interval(_measured(name)["figures"][" ".join(key)])


_BLOCKS: tuple[Callable[..., str], ...] = (
    *(keys, tuning_keys, spellings, parameters, planned, runs, sizes, caches, states, columns, generation_columns),
    *(measured, rows, span, lines, how, figure, interval),
)
BLOCKS = {block.__name__: block for block in _BLOCKS} | {"combinations": combination_table.table}


def _keys(root: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield part, key and JSON schema of every key; in brackets, the kind of attention or position that a key needs."""

    def walk(schema: dict[str, Any], prefix: str, kind: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for name, value in schema["properties"].items():
            key = f"{prefix}{name}"
            if "description" in value and name != "kind":
                part = key.split(".")[0] if "." in key else "run"
                yield "optimization" if key in OPTIMIZATION else part, key + kind, value
            for choice in [value, *value.get("anyOf", []), *value.get("oneOf", [])]:
                if "$ref" in choice:
                    inner = root["$defs"][choice["$ref"].rpartition("/")[2]]
                    mark = f" ({inner['properties']['kind']['const']})" if "kind" in inner["properties"] else kind
                    yield from walk(inner, f"{key}.", mark)

    return walk(root, "", "")


def _type(schema: dict[str, Any]) -> str:
    if "discriminator" in schema:
        return f"`kind`: {', '.join(schema['discriminator']['mapping'])}"
    if "enum" in schema:
        return ", ".join(map(_plain, schema["enum"]))
    choices = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    if all("$ref" in each for each in choices):
        return "part"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {choices[0][name]:,.12g}" for name, sign in signs.items() if name in choices[0]]
    return " ".join([", ".join(TYPES[each["type"]] for each in choices), *limits])


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return str(value["kind"])
    return value if isinstance(value, str) else json.dumps(value)


def _measured(name: str) -> dict[str, Any]:
    """Return the content of docs/measured/`name`.json, with its numbers as written: 0.930 keeps its last digit.

    Raises NotMeasuredError if the script has not written the file.
    """
    path, script = MEASURED / f"{name}.json", f"tests/benchmarks/{name}.py"
    if not path.exists() and (ROOT / script).exists():
        raise NotMeasuredError(f"Not measured yet, by `{script}`.")
    text = path.read_text(encoding="utf-8")
    return json.loads(text, parse_float=str, parse_int=lambda digits: f"{int(digits):,}")


def _value(each: dict[str, Any]) -> str:
    return f"{each['value']} {each.get('unit', '')}".strip()


def _interval(each: dict[str, Any]) -> str:
    if not each.get("interval"):
        return "–"
    low, high = each["interval"]
    return f"{each.get('interval_kind', '')} {low} to {high}".strip()


def _count(each: dict[str, Any]) -> str:
    return f"{each.get('n', '–')} {each.get('n_of', '')}".strip()


def _table(titles: list[str], cells: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in cells)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _in_chinese(line: str) -> str:
    if line.startswith("|"):
        return "| " + " | ".join(_cell_in_chinese(cell) for cell in line.strip("| ").split(" | ")) + " |"
    for english, chinese in CHINESE["phrases"].items():
        line = line.replace(english, chinese)
    return _by_patterns(line)


def _cell_in_chinese(cell: str) -> str:
    return CHINESE["cells"].get(cell) or SAID.get(cell) or _by_patterns(cell)


def _by_patterns(text: str) -> str:
    for pattern, chinese in CHINESE["patterns"].items():
        text = re.sub(pattern, chinese, text)
    return text


def layers() -> str:
    """Return the kinds of attention and of positions of each variant of the matrices, as YAML."""
    matrix = load_matrix()
    runs = {run.variant: run.name for run in (*matrix.other_runs, *matrix.all_runs)}
    kinds = {variant: layers_of(resolve(name).model_dump(mode="json")) for variant, name in sorted(runs.items())}
    rows = [f"{variant}: [{', '.join(of)}]" for variant, of in kinds.items()]
    return "\n".join(
        ["# The kinds of attention and of positions of each variant, written by docs/generate.py.", *rows, ""]
    )


def main() -> int:
    """Rewrite, or check, every page and generated file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check = parser.parse_args().check
    texts = {page: filled(page) for page in pages()} | {path: schema_of(record) for path, record in SCHEMAS.items()}
    texts[LAYERS] = layers()
    stale = [file for file, text in texts.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    for file in stale:
        if not check:
            file.write_text(texts[file], encoding="utf-8")
        print(f"{file.relative_to(ROOT)} {'is out of date: run python docs/generate.py' if check else 'is written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
