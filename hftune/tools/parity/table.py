"""What must be equal: one row each, made of this table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from hftune.tools.parity.flags import EACH_FOUR, HALVES, LORA, PADDED, QUARTERS, WHOLE, sft
from hftune.tools.parity.papers import papers, trls
from hftune.tools.parity.rows import BITS, Known, Row
from hftune.tools.parity.runs import Run


def all_rows() -> list[Row]:
    """Every row, in the order of the page."""
    return [row for make in (*_MADE_BY,) for row in make()]


TITLES = {"pt": "PT", "sft": "SFT", "rm": "RM", "dpo": "DPO", "distill": "distillation", "rl": "RL (GRPO)"}
ZERO3 = ("--deepspeed", "zero3")
SHARED = "A step shared out"
ZERO = "DeepSpeed"


def shared_out() -> Iterator[Row]:
    """8 = 2 x 4 = 2 processes x 4."""
    for stage, title in TITLES.items():
        one = Run(stage)
        yield Row(SHARED, f"{title}: 8 records = 2 × 4 accumulated", Run(stage, HALVES), one)
        if stage != "rl":  # whose answers depend on the process that draws them
            yield Row(SHARED, f"{title}: 8 records = 4 in each of 2 processes", Run(stage, EACH_FOUR, 2), one)
    yield Row(SHARED, "SFT: 8 records = 4 × 2 accumulated, of unequal lengths", sft(*QUARTERS), sft())
    for algorithm in ("rloo", "ppo"):
        asked = ("--rl_algorithm", algorithm, *(("--num_generations", "1") if algorithm == "ppo" else ()))
        one = Run("rl", asked)
        yield Row(SHARED, f"RL ({algorithm.upper()}): 8 records = 2 × 4 accumulated", Run("rl", (*asked, *HALVES)), one)
        yield Row(ZERO, f"RL ({algorithm.upper()}): zero3 = without DeepSpeed", Run("rl", (*asked, *ZERO3)), one)
    kto = ("--loss_type", "kto")
    yield Row(SHARED, "KTO of pairs: 8 = 4 in each of 2 processes", Run("dpo", (*EACH_FOUR, *kto), 2), Run("dpo", kto))
    both = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2")
    yield Row(SHARED, "SFT: 8 records = 2 processes × 2 × 2", sft(*both, processes=2), sft())
    for stage in ("pt", "sft", "dpo"):
        what = f"{TITLES[stage]}: the records of each step, 2 processes = 1 process"
        yield Row(SHARED, what, Run(stage, EACH_FOUR, 2), Run(stage), BITS, ("batch",))
    for loss in (("ipo",), ("simpo",), ("orpo",), ("cpo",), ("cpo_simpo",), ("sigmoid", "sft")):
        title, loss_of = " + ".join(loss).upper(), ("--loss_type", *loss)
        one = Run("dpo", loss_of)
        yield Row(SHARED, f"{title}: 8 pairs = 4 in each of 2 processes", Run("dpo", (*EACH_FOUR, *loss_of), 2), one)
        if len(loss) > 1 or loss[0] not in ("ipo", "simpo"):  # whose means are over pairs alone, as DPO's
            yield Row(SHARED, f"{title}: 8 pairs = 2 × 4 accumulated", Run("dpo", (*HALVES, *loss_of)), one)
    yield from unequal()
    yield Row(SHARED, "LoRA: 8 records = 4 in each of 2 processes", sft(*LORA, *EACH_FOUR, processes=2), sft(*LORA))


def unequal() -> Iterator[Row]:
    """8 records an epoch in batches of 3: the last ones are smaller, or hold repeated records, which count nowhere."""
    threes = ("--per_device_train_batch_size", "3", "--gradient_accumulation_steps")
    for stage, flags in (("sft", ()), ("rm", ()), ("dpo", ()), ("dpo", ("--loss_type", "orpo"))):
        title, whole = TITLES[stage] if not flags else "ORPO", Run(stage, flags, few=True)
        yield Row(
            SHARED, f"{title}: 8 records = 3 + 3 + 2 accumulated", replace(whole, flags=(*flags, *threes, "3")), whole
        )
        apart = replace(whole, flags=(*flags, *threes, "2"), processes=2)
        yield Row(SHARED, f"{title}: 8 records = 2 processes × (3 + 3), with repeated ones", apart, whole)


def deepspeed() -> Iterator[Row]:
    """ZeRO stages and offloading, two processes against one without DeepSpeed."""
    for name in ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"):
        yield Row(
            ZERO, f"SFT: {name} on 2 processes = 1 process", sft(*EACH_FOUR, "--deepspeed", name, processes=2), sft()
        )
    for stage in ("pt", "rm", "dpo", "distill"):
        for name in ("zero2", "zero3"):
            run = Run(stage, (*EACH_FOUR, "--deepspeed", name), 2)
            yield Row(ZERO, f"{TITLES[stage]}: {name} on 2 processes = 1 process", run, Run(stage))
    for name in ("zero2", "zero3"):
        yield Row(
            ZERO,
            f"LoRA: {name} on 2 processes = 1 process",
            sft(*LORA, *EACH_FOUR, "--deepspeed", name, processes=2),
            sft(*LORA),
        )
        yield Row(ZERO, f"RL (GRPO): {name} = without DeepSpeed", Run("rl", ("--deepspeed", name)), Run("rl"))
    clipped = ("--max_grad_norm", "0.5")
    yield Row(
        ZERO,
        "SFT: zero3, 2 × 2 accumulated on 2 processes, clipped = 1 process",
        sft(
            "--per_device_train_batch_size",
            "2",
            "--gradient_accumulation_steps",
            "2",
            "--deepspeed",
            "zero3",
            *clipped,
            processes=2,
        ),
        sft(*clipped),
    )


PARALLEL = "Models shared by processes"
UNBALANCED = ("--router_aux_loss_coef", "0")


def parallel() -> Iterator[Row]:
    """Tensor, expert and sequence parallelism on two processes."""
    tensor, experts = ("--tensor_parallel_size", "2"), ("--expert_parallel_size", "2")
    for name in ("zero1", "zero3"):
        split = ("--deepspeed", name, *tensor)
        yield Row(PARALLEL, f"SFT: tensor parallel, {name} = 1 process", sft(*split, processes=2), sft())
        yield Row(PARALLEL, f"PT: tensor parallel, {name} = 1 process", Run("pt", split, 2), Run("pt"))
        whole = sft(*UNBALANCED, model="mixtral")
        shared = sft(*UNBALANCED, *EACH_FOUR, "--deepspeed", name, *experts, model="mixtral", processes=2)
        yield Row(PARALLEL, f"SFT of a mixture: expert parallel, {name} = 1 process", shared, whole)
    noise = ("--hidden_dropout_prob", "0.1")
    drawn = Run("pt", (*noise, "--deepspeed", "zero1", *tensor), 2)
    yield Row(PARALLEL, "PT: tensor parallel draws the same dropout = 1 process", drawn, Run("pt", noise))
    ulysses = ("--sequence_parallel_size", "2")
    for stage in ("sft", "pt"):
        one, two = Run(stage), Run(stage, ulysses, 2)
        yield Row(PARALLEL, f"{TITLES[stage]}: sequence parallel = 1 process", two, one)
        what = f"{TITLES[stage]}: the records of each step, sequence parallel = 1 process"
        yield Row(PARALLEL, what, two, one, BITS, ("batch",))
    yield Row(
        PARALLEL, "SFT: sequence parallel, zero3 = 1 process", sft(*ulysses, "--deepspeed", "zero3", processes=2), sft()
    )


LAYOUT = "Layout of rows"


def layouts() -> Iterator[Row]:
    """Padded, side by side, packed, streamed, tokenised ahead: the same records in each step."""
    padded = sft(*PADDED, few=True)
    ways: dict[str, Run] = {
        "padding-free": sft("--padding_free", "True", few=True),
        "packed (bfd)": sft("--packing", "True", "--max_length", "128", few=True),
        "streamed": sft("--streaming", "True", few=True),
        "tokenised ahead": sft(few=True, tool="tokenize"),
        "read by 2 workers": sft("--dataloader_num_workers", "2", few=True),
        "padded to a multiple of 64": sft(*PADDED, "--pad_to_multiple_of", "64", few=True),
    }
    for way, run in ways.items():
        yield Row(LAYOUT, f"SFT: {way} = padded", run, padded)
    for stage in ("pt", "rm", "dpo", "distill"):
        flags = WHOLE if stage == "pt" else ()
        yield Row(
            LAYOUT,
            f"{TITLES[stage]}: padding-free = padded",
            Run(stage, (*flags, "--padding_free", "True"), few=True),
            Run(stage, (*flags, *PADDED), few=True),
        )
    yield Row(
        LAYOUT,
        "DPO: a prompt that both answers share = each with its own",
        Run("dpo", ("--shared_prompts", "True")),
        Run("dpo", ("--shared_prompts", "False")),
    )
    yield Row(
        LAYOUT,
        "DPO: the reference computed ahead = in each step",
        Run("dpo", ("--precompute_ref_log_probs", "True")),
        Run("dpo", ("--precompute_ref_log_probs", "False")),
    )


KERNELS = "Ways to compute"


def kernels() -> Iterator[Row]:
    """Attention, the head's loss, the feed-forward layers."""
    for model, name in (("llama", ""), ("gemma2", " (sliding window, soft caps)")):
        eager = sft("--attn_implementation", "eager", *PADDED, model=model)
        if model == "llama":
            yield Row(KERNELS, "attention: SDPA = eager", sft("--attn_implementation", "sdpa", *PADDED), eager)
        yield Row(
            KERNELS, f"attention: side by side = eager, padded{name}", sft("--padding_free", "True", model=model), eager
        )
    yield Row(KERNELS, "SFT: loss in chunks = of whole logits", sft("--loss_type", "chunked_nll"), sft())
    yield Row(KERNELS, "SFT: feed-forward layers in tiles = whole", sft("--tiled_mlp", "True"), sft())
    yield Row(KERNELS, "PT: feed-forward layers in tiles = whole", Run("pt", ("--tiled_mlp", "True")), Run("pt"))


RECOMPUTED = "Recomputing"
DROPOUT = ("--hidden_dropout_prob", "0.2", "--attention_probs_dropout_prob", "0.2", "--attn_implementation", "eager")


def recomputing() -> Iterator[Row]:
    """Every bit, with dropout: what is drawn again must be what was drawn."""
    on = ("--gradient_checkpointing", "True")
    ways = {
        "all layers": (*on, "--activation_checkpointing", "full"),
        "attention": (*on, "--activation_checkpointing", "attention"),
        "the core of attention": (*on, "--activation_checkpointing", "core_attention"),
        "feed-forward layers": (*on, "--activation_checkpointing", "mlp"),
        "every second layer": (*on, "--activation_checkpointing_every", "2"),
        "all layers, reentrant": (*on, "--gradient_checkpointing_kwargs", '{"use_reentrant": true}'),
        "all layers, inputs kept on the CPU": (*on, "--activation_checkpointing_offload", "True"),
    }
    for way, flags in ways.items():
        yield Row(RECOMPUTED, f"SFT: {way} recomputed = nothing", sft(*DROPOUT, *flags), sft(*DROPOUT), BITS)
    full = ways["all layers"]
    for stage in ("pt", "rm", "dpo", "distill", "rl"):
        yield Row(RECOMPUTED, f"{TITLES[stage]}: all layers recomputed = nothing", Run(stage, full), Run(stage), BITS)
    yield Row(RECOMPUTED, "LoRA: all layers recomputed = nothing", sft(*LORA, *full), sft(*LORA), BITS)


RESUMED = "Resumed"
SAVED = ("--save_strategy", "steps", "--save_steps", "2")


def resumed() -> Iterator[Row]:
    """From a checkpoint of step 2, as if nothing had happened."""
    for stage, title in TITLES.items():
        whole = Run(stage, SAVED)
        yield Row(RESUMED, f"{title}: resumed = uninterrupted", replace(whole, after=whole), whole, BITS)
    for title, flags in (("LoRA", LORA), ("dropout", DROPOUT), ("a scheduled rate", ("--lr_scheduler_type", "cosine"))):
        whole = sft(*SAVED, *flags)
        yield Row(RESUMED, f"SFT, {title}: resumed = uninterrupted", replace(whole, after=whole), whole, BITS)
    worlds = {
        "1 process": sft(*SAVED),
        "2 processes": sft(*SAVED, *EACH_FOUR, processes=2),
        "zero2 on 2": sft(*SAVED, *EACH_FOUR, "--deepspeed", "zero2", processes=2),
        "zero3 on 2": sft(*SAVED, *EACH_FOUR, "--deepspeed", "zero3", processes=2),
    }
    for before, after in (
        ("2 processes", "1 process"),
        ("1 process", "2 processes"),
        ("zero2 on 2", "1 process"),
        ("zero3 on 2", "zero2 on 2"),
        ("1 process", "zero3 on 2"),
    ):
        run = replace(worlds[after], after=worlds[before])
        yield Row(RESUMED, f"SFT: {before}, resumed on {after} = uninterrupted", run, worlds[before])
    both = worlds["zero3 on 2"]
    yield Row(RESUMED, "SFT: zero3 on 2 processes, resumed = uninterrupted", replace(both, after=both), both, BITS)


MERGED = "Adapters"
HELD_OUT = ("--validation_file_dir", "{sft}", "--per_device_eval_batch_size", "4")


def merged() -> Iterator[Row]:
    """What an adapter measures of held-out records, and what the merged model measures before it is trained."""
    kinds = {"LoRA": LORA, "DoRA": (*LORA, "--use_dora", "True"), "rsLoRA": (*LORA, "--use_rslora", "True")}
    unmoved = ("--learning_rate", "0", "--max_steps", "1", *HELD_OUT)
    for title, flags in kinds.items():
        adapter = sft(*flags, "--learning_rate", "1e-2", *HELD_OUT)
        yield Row(
            MERGED,
            f"{title}: merged = unmerged, held out",
            sft(*unmoved, after=adapter, tool="merge"),
            adapter,
            figures=("eval_loss",),
        )
    yield Row(
        MERGED,
        "a new adapter changes nothing: first loss of LoRA = of full training",
        sft(*LORA, "--max_steps", "1"),
        sft("--max_steps", "1"),
        figures=("loss",),
    )


RATES = "Learning rates by formula"
_LAST, _WARM, _PEAK = 6, 2, 1e-3


def rates() -> Iterator[Row]:
    """Every step's rate: `f` of the steps that are behind it."""
    after: dict[str, tuple[tuple[str, ...], Callable[[float], float]]] = {
        "linear": ((), lambda x: 1 - x),
        "cosine": ((), lambda x: (1 + math.cos(math.pi * x)) / 2),
        "polynomial": (("--power", "2", "--lr_end", "0"), lambda x: (1 - x) ** 2),
        "constant_with_warmup": ((), lambda x: 1.0),
        "cosine to a tenth": (("--min_lr", "1e-4"), lambda x: 0.1 + 0.9 * (1 + math.cos(math.pi * x)) / 2),
    }
    for name, (flags, shape) in after.items():
        steps = range(_LAST)
        values = [_PEAK * (step / _WARM if step < _WARM else shape((step - _WARM) / (_LAST - _WARM))) for step in steps]
        run = Run(
            "pt",
            (
                "--lr_scheduler_type",
                name.split(" ")[0],
                "--warmup_steps",
                str(_WARM),
                "--max_steps",
                str(_LAST),
                *flags,
            ),
        )
        yield Row(RATES, name, run, Known(tuple(values)), 1e-6, ("learning_rate",))


KINDS = "Kinds of models"


def kinds() -> Iterator[Row]:
    """Sliding windows, mixtures of experts, layers of linear attention, a vision tower beside the language model."""
    names = {
        "gemma2": "sliding window, soft caps",
        "qwen2_moe": "routed and shared experts",
        "mixtral": "mixture",
        "hybrid": "linear attention and attention",
        "tower": "with a vision tower",
    }
    for model, title in names.items():
        more = UNBALANCED if model in ("qwen2_moe", "mixtral") else ()
        one = sft(*more, model=model)
        yield Row(KINDS, f"{title}: 8 = 2 × 4 accumulated", sft(*more, *HALVES, model=model), one)
        yield Row(
            KINDS,
            f"{title}: zero3 on 2 processes = 1 process",
            sft(*more, *EACH_FOUR, "--deepspeed", "zero3", model=model, processes=2),
            one,
        )
        if model != "gemma2":
            yield Row(
                KINDS,
                f"{title}: padding-free = padded",
                sft(*more, "--padding_free", "True", model=model, few=True),
                sft(*more, *PADDED, model=model, few=True),
            )


_MADE_BY = (
    *(shared_out, deepspeed, parallel, layouts, kernels, recomputing, resumed, merged, papers, trls, rates, kinds),
)
