"""LoRA in other tools' words."""

from __future__ import annotations

from hftune.arguments.names.row import Answer, Ask, Given, Translation
from hftune.arguments.names.values.common import cannot, each, mapped, number, shortest

_INSTEAD = "use lora or full"
tuner = mapped("use_peft", {"lora": "True", "full": "False"}, _INSTEAD)

# Megatron's fused layers -> those of Hugging Face's models.
_MODULES = {
    "all-linear": ["all"],
    "linear_qkv": ["q_proj", "k_proj", "v_proj"],
    "linear_proj": ["o_proj"],
    "linear_fc1": ["gate_proj", "up_proj"],
    "linear_fc2": ["down_proj"],
    "word_embeddings": ["embed_tokens"],
    "output_layer": ["lm_head"],
}


def modules(to: str) -> Translation:
    """`target_modules` and `modules_to_save`: names of Megatron's layers become those of Hugging Face's models."""

    def one(name: str, ask: Ask) -> Given:
        names = [part for value in ask.given[name] for part in str(value).replace(",", " ").split()]
        if "all-router" in names:
            raise cannot(name, "all-router", "name the routers, such as mlp.gate")
        found = [module for part in names for module in _MODULES.get(part, [part])]
        return [(to, found)] if found else []

    return each(one)


targets, saved = modules("lora_target_modules"), modules("lora_modules_to_save")


def strength(ask: Ask) -> Answer:
    """`lora_alpha`, `rslora_plus`: ERNIEKit's -1 is twice the rank, or 4 with rsLoRA."""
    if ask.flag("rslora_plus"):
        given: Given = [("use_rslora", ["True"]), ("lora_alpha", ["4"]), ("loraplus_lr_ratio", ["4"])]
        return Answer(given, ("--rslora_plus: rsLoRA with alpha 4, and LoRA+ with ratio 4",))
    alpha = ask.text("lora_alpha")
    if alpha is None:
        return Answer()
    if number("lora_alpha", alpha) != -1:
        return Answer([("lora_alpha", [shortest(number("lora_alpha", alpha))])])
    if (ask.other("use_rslora") or "").lower() in ("true", "1"):
        return Answer([("lora_alpha", ["4"])], ("--lora_alpha -1 is 4 with rsLoRA, as in ERNIEKit",))
    rank = int(number("lora_r", ask.other("lora_r") or "8"))
    return Answer(
        [("lora_alpha", [str(2 * rank)])], (f"--lora_alpha -1 is twice the rank, {2 * rank}, as in ERNIEKit",)
    )
