"""The architecture: an attention variant and a positional encoding in the backbone.

`kind` names the variant, whose declaration has the keys of its section: see architecture/variant.py. Layers of several
kinds follow a pattern; each kind has a view, a model all of whose layers are of that kind.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Mapping
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticUseDefault

from efficientbench.architecture.registry import (
    ATTENTION,
    OWN,
    POSITIONS,
    SECTIONS,
    Section,
    code_of,
    find,
    outside,
    positions_at,
)
from efficientbench.architecture.variant import (
    AttentionConfig,
    AttentionVariant,
    Decoder,
    PositionConfig,
    PositionVariant,
)
from efficientbench.basics.errors import did_you_mean
from efficientbench.basics.part import Part, require

if TYPE_CHECKING:
    _Attention: TypeAlias = AttentionConfig
    _Position: TypeAlias = PositionConfig
else:
    _Attention = Union[tuple(each.config for each in ATTENTION.values())]  # noqa: UP007
    _Position = Union[tuple(each.config for each in POSITIONS.values())]  # noqa: UP007


OWN_LAYER = "own"
"""The name in a pattern of a layer with the model's own keys."""
OF_A_KIND = (*SECTIONS, "qk_norm", "ffn_hidden_size", "moe")
"""The keys of the model that a kind of layer may have instead of the model's."""
NO_EXPERTS = (False, None, "false", "null")
"""Values of a kind's `moe`, also as a command line has them."""


class ModelConfig(Decoder):
    """The decoder: its backbone with an attention variant and a positional encoding, or several in a pattern."""

    attention: SerializeAsAny[_Attention] = Field(
        default=next(variant.config(kind=kind) for kind, variant in ATTENTION.items()),
        discriminator="kind",
        description="the attention variant and its own shapes",
    )
    position: SerializeAsAny[_Position] = Field(
        default=next(variant.config(kind=kind) for kind, variant in POSITIONS.items()),
        discriminator="kind",
        description="the positional encoding",
    )
    first: tuple[str, ...] | None = Field(
        default=None,
        description="kinds of the layers before the pattern begins; unset: none",
    )
    pattern: tuple[str, ...] | None = Field(
        default=None,
        validate_default=True,
        description="kinds of the layers in their order, repeated to the last layer: names of model.kinds, kinds of "
        f"attention with their defaults, or {OWN_LAYER}, which has the model's own keys; unset: layers are alike",
    )
    kinds: dict[str, dict[str, Any]] | None = Field(
        default=None,
        validate_default=True,
        description=f"kinds of layers by name, each with what it has instead of the model's {', '.join(OF_A_KIND)} "
        "(false: no experts); one key: model.kinds.NAME.attention.KEY=VALUE",
    )
    code: dict[str, str | None] | None = Field(default=None, validate_default=True)
    """Each kind from outside this project with the SHA-256 of its code, filled in by itself (`code_of`); None: none."""

    @field_validator("attention", "position", mode="wrap")
    @classmethod
    def _as_declared(cls, given: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        """Validate a section by its variant's declaration, with the default kind and the backbone's widths if unset."""
        section: Section = "attention" if info.field_name == "attention" else "position"
        if not isinstance(given, Mapping):
            return given if isinstance(given, AttentionConfig | PositionConfig) else handler(given)
        given = {"kind": next(iter(OWN[section])), **given}
        kind = given["kind"]
        variant = find(section, kind)
        if variant is None and isinstance(kind, str) and outside(kind):
            raise ValueError(
                f"kind {kind!r} is code from outside this project: only a command that names it runs it, by "
                f"model.{section}.kind={kind}"
            )
        if isinstance(variant, AttentionVariant) and variant.config.proportions(0, 0):
            if not {"hidden_size", "head_dim"} <= info.data.keys():
                # hidden_size or head_dim has its own error, which missing widths would only repeat.
                raise PydanticUseDefault
            given = {**variant.config.proportions(info.data["hidden_size"], info.data["head_dim"]), **given}
        if "heads" in given.values():
            if "heads" not in info.data:
                raise PydanticUseDefault
            # `heads` stands for the backbone's number of heads, so that one variant suits every size.
            given = {key: info.data["heads"] if value == "heads" else value for key, value in given.items()}
        return handler(given) if variant is None or kind in OWN[section] else variant.config.model_validate(given)

    @field_validator("pattern")
    @classmethod
    def _within_the_depth(cls, pattern: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        layers, first = info.data.get("layers"), info.data.get("first") or ()
        if first and pattern is None:
            pattern = (OWN_LAYER,)
        if pattern is not None and layers is not None and not 0 < len(pattern) <= layers - len(first):
            after = f", after {len(first)} of model.first," if first else ""
            left = layers - len(first)
            wanted = f", or set model.layers={len(pattern) + len(first)}" if pattern else ""
            remedy = f"name 1 to {left}{wanted}" if left > 0 else f"model.first may name {layers - 1} at most"
            raise ValueError(
                f"a pattern of {len(pattern)} layers{after} does not fit a model of {layers} (model.layers): {remedy}"
            )
        return pattern

    @field_validator("kinds")
    @classmethod
    def _resolved(cls, kinds: dict[str, dict[str, Any]] | None, info: ValidationInfo) -> dict[str, Any] | None:
        """Validate each kind of the pattern as a model of its own; return the keys in which it differs."""
        pattern = info.data.get("pattern")
        if pattern is None or len(info.data) < list(cls.model_fields).index("kinds"):
            # What is missing has its own error, which kinds without it would only repeat.
            if kinds and "pattern" in info.data:
                raise ValueError("name them in the order of the layers, as model.pattern=[NAME,NAME,own]")
            return None
        own = {name: value.model_dump() if isinstance(value, Part) else value for name, value in info.data.items()}
        names = dict.fromkeys((*(own["first"] or ()), *pattern))
        own["first"], own["pattern"], given = None, None, kinds or {}
        found: dict[str, Any] = {}
        problems = [f"{name}: no layer of model.pattern is of this kind" for name in given if name not in names]
        experts = not own["moe"]
        for name in names:
            problem = _unknown(name, given)
            if problem:
                problems.append(problem)
                continue
            try:
                view = cls.model_validate(own | _overlaid(own, _keys(name, own, given.get(name, {}))))
                _places_fit(view.model_copy(update={"position": info.data["position"]}), view)
            except ValueError as error:
                problems += _messages(name, error)
            else:
                found |= {} if name == OWN_LAYER else {name: _differences(own, view)}
                experts = experts or view.moe is not None
        none_left = "no layer of model.pattern has the experts of model.moe: leave model.moe out"
        require((not problems, "; ".join(problems)), (experts, none_left))
        return found

    @field_validator("code")
    @classmethod
    def _as_loaded(cls, code: dict[str, str | None] | None, info: ValidationInfo) -> dict[str, str | None] | None:
        """Fill in the code that is loaded, where the configuration is not that of an earlier command."""
        given = {name: value.model_dump() if isinstance(value, Part) else value for name, value in info.data.items()}
        return code_of(given) or None if code is None else code

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out how layers differ where they do not: the model is then what it was before these keys."""
        dumped: dict[str, Any] = handler(self)
        unset = {"pattern", "kinds"} if self.pattern is None else set()
        unset |= {"first"} if not self.first else set()
        unset |= {"code"} if self.code is None else set()
        return {key: value for key, value in dumped.items() if key not in unset}

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """The name of each layer's kind."""
        return tuple(islice(chain(self.first or (), cycle(self.pattern or (OWN_LAYER,))), self.layers))

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The numbers, from 0, of the layers with experts."""
        views = self.views
        return tuple(number for number, name in enumerate(self.layer_kinds) if views[name].moe is not None)

    @property
    def told_kinds(self) -> str | None:
        """How many layers are of each kind, like `21 swa, 7 own`; None where layers are alike."""
        if self.pattern is None:
            return None
        return ", ".join(f"{count} {name}" for name, count in Counter(self.layer_kinds).items())

    @property
    def views(self) -> dict[str, ModelConfig]:
        """The view of each kind of layer: the model as if all layers were of this kind."""
        if self.pattern is None:
            return {OWN_LAYER: self}
        own, kinds = self.own_view, self.kinds or {}
        names = dict.fromkeys(self.layer_kinds)
        return {name: own.model_copy(update=_changes(own, kinds.get(name, {}))) for name in names}

    @property
    def own_view(self) -> ModelConfig:
        """The model as if all layers had its own keys; its positional encoding is that of embedding and scores."""
        return self if self.pattern is None else self.model_copy(update=dict.fromkeys(("first", "pattern", "kinds")))

    @property
    def counted_views(self) -> list[tuple[ModelConfig, int]]:
        """Each view with the number of its layers."""
        numbers = Counter(self.layer_kinds)
        return [(view, numbers[name]) for name, view in self.views.items()]

    @property
    def attention_variant(self) -> AttentionVariant:
        """The declaration of the attention.

        Raises TypeError: the model has a pattern, so that only a view has one attention.
        """
        self._refuse_pattern()
        found = find("attention", self.attention.kind)
        assert isinstance(found, AttentionVariant)
        return found

    @property
    def position_variant(self) -> PositionVariant:
        """The declaration of the positional encoding. Raises TypeError as `attention_variant`."""
        self._refuse_pattern()
        found = find("position", self.position.kind)
        assert isinstance(found, PositionVariant)
        return found

    @property
    def plain_scores(self) -> tuple[int, int] | None:
        """Widths of a key and a value head of plain causal attention, which the configured kernel computes.

        None: the layer computes its scores by itself. Raises TypeError as `attention_variant`.
        """
        widths = self.attention_variant.plain_scores
        return None if widths is None else widths(self)

    @property
    def shares_sequence(self) -> bool:
        """Whether context-parallel ranks can share a sequence. Raises TypeError as `attention_variant`."""
        declared = self.attention_variant.context_parallel
        return declared if isinstance(declared, bool) else declared(self)

    def keys_of_kind(self, name: str, message: str) -> str:
        """Return the message of a kind's view with the keys that the kind has instead of the model's."""
        for key in (self.kinds or {}).get(name, {}).get("attention", {}):
            message = re.sub(rf"model\.attention\.{key}\b", f"model.kinds.{name}.attention.{key}", message)
        return message

    def _refuse_pattern(self) -> None:
        """Raise TypeError where layers are of several kinds, so that no formula answers for the wrong ones."""
        if self.pattern is not None:
            raise TypeError(
                "the layers of a model with a pattern are of several kinds: ask its views (ModelConfig.views)"
            )

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.pattern is not None:
            # `_resolved` has validated each view.
            return self
        attention, position = self.attention_variant, self.position_variant
        normed = " and ".join(kind for kind, each in ATTENTION.items() if each.qk_norm)
        require(
            (
                self.heads % self.key_value_heads == 0,
                f"{self.heads} heads cannot be shared evenly by {self.key_value_heads} query groups: "
                "attention.query_groups must divide heads",
            ),
            (
                attention.qk_norm or not self.qk_norm,
                f"qk_norm is defined for {normed} alone, and attention.kind is {self.attention.kind}: set "
                "qk_norm=false",
            ),
            (
                position.place in attention.places,
                attention.other_positions.format(
                    attention=self.attention.kind, position=self.position.kind, taken=positions_at(attention.places)
                ),
            ),
            (
                position.place != "scores" or attention.plain_scores is None or self.plain_scores is not None,
                f"position.kind: {self.position.kind} puts a bias on scores, which the kernel of windows and sinks "
                "(attention.window, attention.sinks) does not take: leave them out, or set model.position.kind to "
                f"{positions_at(frozenset({'nothing', 'embedding', 'queries and keys'}))}",
            ),
            (
                self.position.rope_base is None or (self.rotated_dim > 0 and self.rotated_dim % 2 == 0),
                f"RoPE rotates pairs of dimensions: {self.attention.rotated_key}, or its share (position.share), must "
                f"be even and above 0, not {self.rotated_dim}",
            ),
        )
        return self


def _unknown(name: str, given: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with a name of the pattern or with the keys of its kind; None if nothing is."""
    if name == OWN_LAYER:
        return f"{name}: stands for the model's own keys: give the kind another name" if name in given else None
    if name not in given:
        if find("attention", name) is not None:
            return None
        valid = (OWN_LAYER, *given, *ATTENTION)
        hint = did_you_mean(name, valid, f"the names are {', '.join(valid)};")
        keys = f"a kind of your own has keys: model.kinds.{name}.attention.KEY=VALUE"
        return f"{name}: is in model.pattern, and neither here nor an attention; {hint} {keys}"
    strange = [key for key in given[name] if key not in OF_A_KIND]
    if strange:
        return f"{name}.{strange[0]}: a kind has {', '.join(OF_A_KIND)} alone"
    attention = given[name].get("attention")
    kind = attention.get("kind", name) if isinstance(attention, Mapping) else name
    if kind != name and find("attention", name) is not None:
        return f"{name}: is the name of an attention, and its attention.kind is {kind}: give the kind another name"
    others = f"{name}.moe: layers with experts have those of model.moe: a kind can only be without, by moe: false"
    return others if given[name].get("moe") not in NO_EXPERTS else None


def _default(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a kind without a section: an attention with its defaults.

    One that has no queries and keys to turn or to normalize is without RoPE and their norms.
    """
    attention, position = find("attention", name), find("position", own["position"]["kind"])
    if name == OWN_LAYER or not isinstance(attention, AttentionVariant) or not isinstance(position, PositionVariant):
        return {}
    turned = position.place == "queries and keys" and position.place not in attention.places
    found: dict[str, Any] = {"attention": {"kind": name}} | ({"position": {"kind": "none"}} if turned else {})
    return found | ({"qk_norm": False} if turned and own["qk_norm"] else {})


def _keys(name: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a kind: those of its section, over the attention's that it is named after, if it is."""
    default = _default(name, own)
    attention = given.get("attention", {})
    if default and isinstance(attention, Mapping):
        return {**default, **given, "attention": {**default["attention"], **attention}}
    return {**default, **given}


def _overlaid(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a kind: within a section the same kind adds keys, another kind replaces the section."""
    found = {key: _section(own[key], value) if key in SECTIONS else value for key, value in given.items()}
    return found | ({"moe": None} if "moe" in given else {})


def _section(own: Mapping[str, Any], given: Any) -> Any:
    same = isinstance(given, Mapping) and given.get("kind", own["kind"]) == own["kind"]
    return {**own, **given} if same else given


def _differences(own: Mapping[str, Any], view: ModelConfig) -> dict[str, Any]:
    """Return the keys in which a view differs from the model's own, so that `_overlaid` gives the view again."""
    found: dict[str, Any] = {}
    for key in OF_A_KIND:
        value = getattr(view, key)
        if key == "moe":
            # Not null, which is as good as absent where records are compared.
            found |= {key: False} if own[key] and value is None else {}
            continue
        if key not in SECTIONS:
            found |= {key: value} if value != own[key] else {}
            continue
        dumped, before = value.model_dump(), own[key]
        if dumped["kind"] == before["kind"]:
            # A section leaves out some keys that are unset.
            both = {name: dumped.get(name) for name in (*dumped, *before)}
            dumped = {name: each for name, each in both.items() if each != before.get(name)}
        found |= {key: dumped} if dumped else {}
    return found


def _changes(own: ModelConfig, differences: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a view's keys from those in which it differs; sections are validated as declared."""
    changed = dict(differences) | ({"moe": None} if "moe" in differences else {})
    for section in SECTIONS:
        if section in differences:
            keys = _section(getattr(own, section).model_dump(), differences[section])
            variant = find(section, keys["kind"])
            assert variant is not None
            changed[section] = variant.config.model_validate(keys)
    return changed


def _places_fit(own: ModelConfig, view: ModelConfig) -> None:
    """Raise ValueError if a kind changes the encoding of the embedding or of scores, which all layers share."""
    shared = {own.position_variant.place, view.position_variant.place} & {"embedding", "scores"}
    require(
        (
            own.position == view.position or not shared,
            f"position.kind: layers with {own.position.kind!r} and with {view.position.kind!r} positions cannot be in "
            f"one model: a kind may differ only among {positions_at(frozenset({'nothing', 'queries and keys'}))}",
        )
    )


def _messages(name: str, error: ValueError) -> list[str]:
    """Return the problems of a kind's view, each with the path of its key."""
    if not isinstance(error, ValidationError):
        return [f"{name}.{error}"]
    found = []
    for each in error.errors(include_url=False):
        # After a section pydantic inserts the kind.
        path = [
            str(step) for place, step in enumerate(each["loc"]) if place != 1 or step not in {*ATTENTION, *POSITIONS}
        ]
        message = each["msg"].removeprefix("Value error, ")
        if name != OWN_LAYER:
            # The key of the model would change its other layers too.
            message = message.replace(", or in a pattern model.kinds.NAME.position.kind", "")
            message = message.replace("model.position.kind", f"model.kinds.{name}.position.kind")
        if each["type"] == "extra_forbidden":
            message = "is no key of this kind"
        elif each["type"] != "value_error":
            message = f"{reprlib.repr(each['input'])} does not fit: {message[:1].lower()}{message[1:]}"
        found.append(f"{'.'.join([name, *path])}: {message}")
    return found
