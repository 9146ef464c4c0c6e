"""Exercise 2: MetaSchedule in place of the rules: how do the IR and the CUDA differ?

Schedule rules decide by looking at a kernel: the same kernel always gets the same loops, at once.
MetaSchedule describes many schedules for a kernel, with numbers left open (how large is a tile,
how many threads), draws some, measures them and keeps the fastest. It needs no more than the
unscheduled TensorIR that fusion leaves, and what it gives goes on to the same compiler.

Here eight schedules are drawn for the CPU and measured, and one is drawn for a GPU. A real search
draws thousands, and learns from them which ones to draw.
"""

import time

import torch
import tvm
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.logging import get_logger, get_logging_func

import babytriton as bt
from babytriton.passes.pipeline import finish, fuse
from babytriton.passes.scheduling import SCHEDULED
from babytriton.targets import tvm_target


def layer(x, w):
    return torch.relu(x @ w)


RULE = ms.schedule_rule
POST = ms.postproc
SPACES = {
    # The rules say which schedules there are: S is a level of tiles in space, R in a reduction.
    "cpu": (
        [
            RULE.MultiLevelTiling("SSRSRS", max_innermost_factor=64),
            RULE.ParallelizeVectorizeUnroll(
                max_jobs_per_core=16, max_vectorize_extent=64, unroll_max_steps=[0, 16, 64]
            ),
        ],
        [POST.RewriteParallelVectorizeUnroll(), POST.RewriteReductionBlock()],
    ),
    "cuda": (
        [
            RULE.MultiLevelTiling(
                "SSSRRSRS",
                tile_binds=["blockIdx.x", "vthread.x", "threadIdx.x"],
                max_innermost_factor=16,
                vector_load_lens=[1, 2, 4],
                reuse_read=RULE.ReuseType("must", levels=[4], scope="shared"),
                reuse_write=RULE.ReuseType("must", levels=[3], scope="local"),
            ),
            RULE.AutoInline(  # relu into the copy of the result from registers to memory
                into_producer=True,
                into_consumer=True,
                inline_const_tensor=True,
                disallow_if_then_else=False,
                require_injective=False,
                require_ordered=False,
            ),
            RULE.AutoBind(max_threadblocks=256, thread_extents=[32, 64, 128, 256]),
        ],
        [
            POST.RewriteCooperativeFetch(),
            POST.RewriteUnboundBlock(),
            POST.RewriteParallelVectorizeUnroll(),
            POST.RewriteReductionBlock(),
            POST.VerifyGPUCode(),
        ],
    ),
}


class Context(ms.TuneContext):
    """A search of MetaSchedule's, of schedules drawn at random.

    MetaSchedule's own constructor first loads what it knows of tensor cores, for some 15 seconds.
    """

    def __init__(self, mod, target, space):
        strategy = ms.search_strategy.ReplayTrace()
        log = get_logging_func(get_logger("meta_schedule"))
        seed = threads = 1
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext, mod, target, space, strategy, "main", threads, seed, log
        )
        _ffi_api.TuneContextInitialize(self)


def draw(lowered, count):
    """Schedules that MetaSchedule draws for a function of one kernel, as programs."""
    fused = fuse(lowered.mod, lowered.target)
    [(name, kernel)] = [
        (name, function)
        for name, function in fused.functions_items()
        if isinstance(function, tirx.PrimFunc)
    ]
    rules, postprocs = SPACES[lowered.target.kind]
    # Given the number of cores, MetaSchedule does not ask for a package that counts them. For
    # newer GPUs it draws pipelined copies, which TVM's code generator refuses.
    told = {"cpu": {"num-cores": torch.get_num_threads()}, "cuda": {"arch": "sm_75"}}
    target = {**tvm_target(lowered.target).export(), **told[lowered.target.kind]}
    context = Context(
        tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}),
        tvm.target.Target(target),
        ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=postprocs, mutator_probs={}),
    )
    context.pre_tuning(
        max_trials=count,
        num_trials_per_iter=count,
        design_spaces=context.generate_design_space(),
        database=ms.database.MemoryDatabase(),
    )
    for candidate in context.generate_measure_candidates():
        scheduled = candidate.sch.mod["main"].with_attr(SCHEDULED, True)
        functions = dict(fused.functions_items())
        functions[name] = scheduled.without_attr("global_symbol")
        mod = tvm.IRModule(functions, attrs=fused.attrs, global_infos=fused.global_infos)
        yield bt.Scheduled(lowered, finish(mod, lowered.target.kind)), candidate.sch.trace


def microseconds(compiled, *args):
    """The fastest of some runs."""
    compiled(*args)
    runs = []
    for _ in range(20):
        start = time.perf_counter()
        compiled(*args)
        runs.append(time.perf_counter() - start)
    return min(runs) * 1e6


x, w = torch.randn(64, 96), torch.randn(96, 128)

print("the CPU, measured:")
lowered = bt.jit("cpu")(layer).lower(x, w)
by_rules = lowered.schedule().compile()
print(f"  by rules     {microseconds(by_rules, x, w):8.1f} us")
drawn = []
for number, (scheduled, _) in enumerate(draw(lowered, 8)):
    compiled = scheduled.compile()
    torch.testing.assert_close(compiled(x, w), layer(x, w), rtol=1e-4, atol=1e-4)
    drawn.append((microseconds(compiled, x, w), number, compiled))
    print(f"  schedule {number}   {drawn[-1][0]:8.1f} us")
best_time, best_number, best = min(drawn, key=lambda entry: entry[0])
worst_time = max(entry[0] for entry in drawn)
print(f"  the best drawn is schedule {best_number}; the worst takes {worst_time / best_time:.1f} x")

print("a GPU, not measured: the decisions that MetaSchedule took")
lowered_gpu = bt.jit("gpu")(layer).lower(x, w)
gpu_by_rules = lowered_gpu.schedule().compile()
scheduled, trace = next(iter(draw(lowered_gpu, 1)))
gpu_drawn = scheduled.compile()
print("\n".join(line for line in str(trace).splitlines() if "sample_" in line))
print("TensorIR by rules:")
print(gpu_by_rules.scheduled.as_text())
print("TensorIR by MetaSchedule:")
print(scheduled.as_text())
for title, compiled in (("by rules", gpu_by_rules), ("by MetaSchedule", gpu_drawn)):
    source = compiled.source()
    kernel = source[source.index('extern "C" __global__') :]
    print(f"CUDA {title}: {len(kernel.splitlines())} lines")
    for word in ("__shared__", "__syncthreads", "for (", "float2", "float4"):
        print(f"  {word:15} {kernel.count(word):3}")
if torch.cuda.is_available():
    torch.testing.assert_close(gpu_drawn(x.cuda(), w.cuda()).cpu(), layer(x, w))
    print("both give what torch gives")
