"""The models that are known, and what in them is replaced by what."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from babytriton import errors
from babytriton.integrations import require
from babytriton.integrations.transformers.attention import (
    Attention,
    Call,
    Rotary,
    Softmax,
    calls_of,
)
from babytriton.integrations.transformers.layers import (
    GatedMLP,
    Intermediate,
    LayerNorm,
    Linear,
    RMSNorm,
)
from babytriton.integrations.transformers.report import Entry, Report
from babytriton.integrations.transformers.swapping import (
    Replacement,
    is_swapped,
    swap,
    swap_back,
)
from babytriton.targets import Target, as_target

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "bert", "roberta", "xlm_roberta")
"""The models that are known, by the folders of transformers that define them."""

UNKNOWN = "not a class of models that is known"
OFF = "switched off"
OTHER = "its forward is not the one that is known"


def optimize(
    model: nn.Module,
    target: Target | str | None = None,
    *,
    norms: bool = True,
    rotary: bool = True,
    mlp: bool = True,
    softmax: bool = True,
    linear: bool = True,
) -> Report:
    """Let a model of transformers compute parts of itself by compiled functions, in place.

    It keeps its modules, parameters and hooks; ``restore`` undoes it. What was optimized before is
    optimized anew. Functions are compiled when the model is called.

    Args:
        model: a model like Llama, Qwen or BERT, or a module with such models in it.
        target: what to compile for; by default the device of the arguments decides.
        norms: replace RMSNorm and LayerNorm.
        rotary: replace the rotary position embeddings of attention.
        mlp: replace the activation of MLPs, with the product by what it gates.
        softmax: replace the softmax of attention where it is ``"eager"``, with scale and mask.
        linear: replace linear layers for the few rows of decoding steps.

    Returns:
        What was replaced, and what was left and why; it prints as a table.

    Raises:
        ImportError: transformers is not installed.
        TypeError: the model is no module of torch.
        ValueError: the target is unknown.

    Warns:
        UserWarning: the model is of a class that is not known; it is left as it was.
    """
    if not isinstance(model, nn.Module):
        raise errors.NotAModule(None, type(model).__name__).error()
    chosen = None if target is None else as_target(target)
    require("transformers", "bt.integrations.transformers.optimize", "transformers")
    restore(model)
    switches = {
        "norms": norms,
        "rotary": rotary,
        "mlp": mlp,
        "softmax": softmax,
        "linear": linear,
    }
    walk = _Walk(chosen, switches)
    walk.visit(model, "", None, None)
    if not walk.knows:
        name = type(model).__name__
        if not walk.report.counts:
            walk.note(name, "model", False, UNKNOWN)
        warnings.warn(errors.UnknownModel(None, name, ", ".join(FAMILIES)).render(), stacklevel=2)
    return walk.report


def restore(model: nn.Module) -> None:
    """Let a model compute everything as it did before ``optimize``."""
    for module in model.modules():
        if is_swapped(module):
            swap_back(module)


@dataclass
class _Walk:
    """One walk through a model.

    Attributes:
        target: what to compile for.
        switches: which parts are to be replaced.
        report: what was done.
        knows: whether there was a module of a class that is known.
    """

    target: Target | None
    switches: dict[str, bool]
    report: Report = field(default_factory=Report)
    knows: bool = False
    _visited: set[nn.Module] = field(default_factory=set)
    _agreed: dict[tuple[type[nn.Module], Replacement], bool] = field(default_factory=dict)

    def note(self, module: str, part: str, replaced: bool, text: str) -> None:
        """Add a line to the report, or count one module more in it."""
        self.report.counts[Entry(module, part, replaced, text)] += 1

    def visit(self, module: nn.Module, name: str, known: bool | None, config: Any) -> None:
        """Replace what there is to replace in a module, and in those in it.

        Args:
            module: to look at.
            name: of the attribute that holds it.
            known: whether the model it is a part of is; ``None`` outside of models.
            config: of that model.
        """
        if module in self._visited:
            return
        self._visited.add(module)
        own, config = _is_known(type(module)), getattr(module, "config", config)
        if own is False and known is not False:
            self.note(type(module).__name__, "model", False, UNKNOWN)
        known = known if own is None else own
        if known:
            self.knows = True
            self._replace(module, name, config)
        for child_name, child in module.named_children():
            self.visit(child, child_name, known, config)

    def _replace(self, module: nn.Module, name: str, config: Any) -> None:
        kind = type(module).__name__
        found, left = self._found(module, name, config)
        for part, why in left:
            self.note(kind, part, False, why)
        if found is None:
            return
        why_not = _untouchable(module)
        if why_not is None and not self._agrees(module, found):
            why_not = OTHER
        if why_not is None:
            swap(module, found)
        for part, text in found.lines():
            self.note(kind, part, why_not is None, why_not or text)

    def _agrees(self, module: nn.Module, found: Replacement) -> bool:
        key = type(module), found
        if key not in self._agreed:
            self._agreed[key] = found.agrees(module)
        return self._agreed[key]

    def _found(
        self, module: Any, name: str, config: Any
    ) -> tuple[Replacement | None, Sequence[tuple[str, str]]]:
        """The replacement for a module, if there is one; parts that are left, and why."""
        if type(module).__name__.endswith("Attention"):
            return self._attention(module)
        found = _layer(module, name, config, self.target)
        if isinstance(found, tuple):
            return None, [found]
        if found is None or self.switches[found.part]:
            return found, []
        return None, [(found.part, OFF)]

    def _attention(self, module: Any) -> tuple[Replacement | None, Sequence[tuple[str, str]]]:
        left, calls = [], []
        for call, why_not in _calls(module):
            why_not = why_not if self.switches[call.part] else OFF
            if why_not is None:
                calls.append(call)
            else:
                left.append((call.part, why_not))
        if not calls:
            return None, left
        config = module.config
        sizes = [config.num_attention_heads, getattr(config, "num_key_value_heads", 0)]
        size = config.hidden_size // config.num_attention_heads
        sizes.append(getattr(config, "head_dim", None) or size)
        return Attention(self.target, tuple(calls), tuple(sizes)), left


def _is_known(kind: type[nn.Module]) -> bool | None:
    """Whether a class is of a model that is known; ``None`` if it is of no model."""
    for base in kind.__mro__:
        found = re.match(r"transformers\.models\.(\w+)\.modeling_", base.__module__)
        if found:
            return found[1] in FAMILIES
    return None


def _untouchable(module: nn.Module) -> str | None:
    """Why a module is to be left alone, whatever it computes."""
    if "forward" in vars(module):
        return "its forward was replaced by others"
    if not type(module).forward.__module__.startswith(("transformers.models.", "torch.nn.")):
        return OTHER
    for name, parameter in module.named_parameters():
        if type(parameter.data) is not torch.Tensor:
            return f"{name} is a {type(parameter.data).__name__}"
        if parameter.is_meta:
            return f"{name} has no data"
    return None


def _layer(
    module: Any, name: str, config: Any, target: Target | None
) -> RMSNorm | LayerNorm | GatedMLP | Intermediate | Linear | tuple[str, str] | None:
    """The replacement for a layer, or the part it is and why there is none."""
    kind = type(module)
    if kind is nn.Linear:
        return Linear(target, module.in_features, module.out_features)
    if kind is nn.LayerNorm:
        if len(module.normalized_shape) != 1 or not module.elementwise_affine:
            return "norms", "it has no weights of one dimension"
        return LayerNorm(target, module.normalized_shape[0], module.eps)
    names = [base.__name__ for base in kind.__mro__]
    if any(name.endswith("RMSNorm") for name in names) and hasattr(module, "variance_epsilon"):
        return RMSNorm(target, module.weight.shape[0], module.variance_epsilon, name)
    if all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        if not isinstance(config.hidden_act, str):
            return "mlp", "its activation is not one of transformers'"
        return GatedMLP(target, module.gate_proj.out_features, config.hidden_act)
    if hasattr(module, "intermediate_act_fn") and hasattr(module, "dense"):
        if not isinstance(config.hidden_act, str):
            return "mlp", "its activation is not one of transformers'"
        return Intermediate(target, module.dense.out_features, config.hidden_act)
    return None


def _calls(module: Any) -> Iterator[tuple[Call, str | None]]:
    """What attention calls, and why that is to be left as it is."""
    kind = type(module)
    rotary, softmax = Rotary(), Softmax(wide=True)
    for call in (rotary, softmax):
        if call.name not in inspect.unwrap(kind.forward).__code__.co_names:
            continue
        implementation = getattr(module.config, "_attn_implementation", "eager")
        if call is softmax and implementation != "eager":
            yield call, f'attention is "{implementation}", which has no softmax of its own'
        elif not calls_of(kind, call.name):
            yield call, OTHER
        elif call is softmax and not call.agrees(module):
            narrow = Softmax(wide=False)
            yield narrow, None if narrow.agrees(module) else OTHER
        else:
            yield call, None if call.agrees(module) else OTHER
