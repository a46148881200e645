"""Time to generate with beams under a CRAFT or DoRA adapter over the bare model's.

    python -m tests.benchmarks.generation [--quick] [--threads 1] [--device cuda]

Through the bypass, whose cores are kept from one decoding step to the next, and merged where the weights' dtype holds the
change (`craft.tuners.craft.export.merged`): once for all prompts, as `craft.scoring.generation` does, so the merging itself is
not timed. DoRA (r = 32 on q, k, v, o, float32 adapters) as PEFT runs it, and with its norms kept (`craft.scoring.dora_norms`).
Four beams and 32 new tokens, as the commonsense protocol decodes.
"""

from __future__ import annotations

import copy

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from craft.scoring.dora_norms import norms_kept
from craft.tuners.craft.export import merged
from tests.benchmarks.shapes import shared_copy
from tests.benchmarks.step_time import DTYPES, QKVO, QV, craft, lora
from tests.benchmarks.timing import alternate, arguments, machine, table

SIZES = {
    name: LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 256,
        intermediate_size=inner,
    )
    for name, width, layers, inner in (("llama-small", 768, 8, 2048), ("llama-wide", 2048, 4, 5632))
}
GOAL = 1.05


def main() -> None:
    given = arguments(__doc__, list(SIZES))
    print(f"generation with 4 beams, {machine(given.device)}")
    new_tokens = 8 if given.quick else 32
    for name in given.models:
        for kind, dtype in DTYPES.items():
            torch.manual_seed(0)
            base = AutoModelForCausalLM.from_config(SIZES[name]).to(given.device, dtype).eval().requires_grad_(False)
            adapted = craft(shared_copy(base), 128, QV).eval()
            held = craft(copy.deepcopy(base), 128, QV).eval()  # merging writes into the weights
            plain, kept = (lora(shared_copy(base), 32, QKVO, same_dtype=False, dora=True).eval() for _ in range(2))
            ids = torch.arange(2 * 48, device=given.device).view(2, 48) + 5
            settings = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "num_beams": 4,
                "do_sample": False,
                "max_new_tokens": new_tokens,
                "min_new_tokens": new_tokens,
                "pad_token_id": 0,
            }

            contenders = {
                "bare model": lambda base=base, settings=settings: base.generate(**settings),
                "CRAFT qv r=128, bypass": lambda adapted=adapted, settings=settings: adapted.generate(**settings),
                "CRAFT qv r=128, merged where held": lambda held=held, settings=settings: held.generate(**settings),
                "DoRA qkvo r=32": lambda plain=plain, settings=settings: plain.generate(**settings),
                "DoRA qkvo r=32, norms kept": lambda kept=kept, settings=settings: kept.generate(**settings),
            }
            rounds = given.rounds or (2 if given.quick else 15)
            with torch.no_grad(), merged(held), norms_kept(kept):
                timings = alternate(contenders, "bare model", rounds=rounds, warmup=1, device=given.device)
            goals = {label: GOAL for label in contenders if label.startswith("CRAFT")}
            print(table(f"\n{name}, {kind}, 2 prompts of 48 tokens, {new_tokens} new ones", timings, goals), flush=True)


if __name__ == "__main__":
    main()
