#!/usr/bin/env python3
"""Decoding with what does not fit kept in host memory, by Hugging Face accelerate: a peer of `sluice bench --hbm`.

Weights are zeros of the model's sizes in bf16, so nothing is downloaded; their values do not change what moves. Prints one
JSON object. Exits with 3 where torch, transformers or accelerate is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

NOT_INSTALLED = 3
WARM_UP_STEPS = 1
SHAPES = {  # as models/shapes has them
    "opt-125m": {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    "opt-13b": {"hidden_size": 5120, "ffn_dim": 20480, "num_hidden_layers": 40, "num_attention_heads": 40},
    "opt-30b": {"hidden_size": 7168, "ffn_dim": 28672, "num_hidden_layers": 48, "num_attention_heads": 56},
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="opt-30b")
    parser.add_argument("--memory", default="20GiB", help="of the GPU, for weights")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: all weights are copied before use, to try the script out")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    try:
        import accelerate
        import torch
        import transformers
    except ImportError as error:
        print(f"not installed here: {error.name}", file=sys.stderr)
        return NOT_INSTALLED

    # The embedding's width is the hidden size, unlike what the class has by default.
    shape = SHAPES[chosen.model]
    config = transformers.OPTConfig(word_embed_proj_dim=shape["hidden_size"], **shape)
    with accelerate.init_empty_weights():
        model = transformers.OPTForCausalLM(config).to(torch.bfloat16)
    model.tie_weights()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.zero_()
    model.tie_weights()
    model.eval()
    if chosen.device == "cuda":
        places = accelerate.infer_auto_device_map(model, max_memory={0: chosen.memory, "cpu": "1000GiB"},
                                                  no_split_module_classes=["OPTDecoderLayer"])
        model = accelerate.dispatch_model(model, places)
    else:
        model = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))

    times = []
    with torch.inference_mode():
        tokens = torch.zeros((chosen.batch, 1), dtype=torch.long, device=chosen.device)
        cache = transformers.DynamicCache()
        for _ in range(WARM_UP_STEPS + chosen.steps):
            start = time.perf_counter()
            logits = model(tokens, past_key_values=cache).logits
            tokens = logits[:, -1:].argmax(-1).to(chosen.device)
            tokens.sum().item()  # waits for it
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times[WARM_UP_STEPS:])
    json.dump({"peer": "accelerate", "version": accelerate.__version__, "torch": torch.__version__,
               "transformers": transformers.__version__, "model": chosen.model, "batch": chosen.batch,
               "memory": chosen.memory, "device": chosen.device, "seconds_per_token": seconds,
               "tokens_per_s": chosen.batch / seconds}, sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
