#!/usr/bin/env python3
"""Writes quantized_models/<case>/: tiny random models with quantised weights, and what Transformers computes with the
same weights widened to f32.

Run by hand with a Python that has torch, transformers, safetensors and compressed-tensors; needs no network. The
outputs are committed: building and testing need no Python. README.md says what the files hold.

    python make_quantized_models.py         # every case
    python make_quantized_models.py gptq    # one
"""
import dataclasses
import json
import pathlib
import shutil
import sys

import numpy
import safetensors.torch
import torch
import transformers
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor, pack_to_int32
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import make_models
import make_quantized
from make_quantized import FORMATS, Tensors, pack_awq, pack_rows

HERE = pathlib.Path(__file__).resolve().parent / "quantized_models"
FORMATS.update({"int4-g32z": ("int4", 32, 1, True), "int8-g64": ("int8", 64, 1, False),
                "int8-g0": ("int8", 0, 1, False)})


def config(hidden: int, ffn: int, layers: int, **more) -> LlamaConfig:
    return LlamaConfig(vocab_size=101, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                       num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, max_position_embeddings=256,
                       bos_token_id=3, eos_token_id=4, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                       **more)


@dataclasses.dataclass
class QuantizedCase:
    name: str
    method: str
    config: object
    formats: dict[str, str]   # the end of a module's name and its format; the first that fits counts
    layer_scale: float = 1.0
    embedding_scale: float = 1.0
    router_levels: float = 2.0

    def format_of(self, module: str) -> str | None:
        """None: the module stays plain."""
        return next((form for end, form in self.formats.items() if module.endswith(end)), None)


CASES = [
    # layers and head in two formats, one weight left plain, zero points in another
    QuantizedCase("ct-mixture", "compressed-tensors", config(64, 128, 2),
                  {"1.mlp.down_proj": None, "0.mlp.up_proj": "int4-g64z", "_proj": "int4-g32", "lm_head": "int8-g64"}),
    QuantizedCase("ct-int8", "compressed-tensors",
                  Qwen2Config(vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
                              max_position_embeddings=256, bos_token_id=3, eos_token_id=4,
                              rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
                  {"_proj": "int8-g32"}),
    QuantizedCase("ct-fp8", "compressed-tensors", config(56, 77, 2), {"_proj": "fp8-row"}),
    QuantizedCase("gptq", "gptq", config(64, 128, 2), {"_proj": "int4-g32z"}),
    QuantizedCase("awq", "awq", config(64, 128, 2), {"_proj": "int4-g64z"}),
    QuantizedCase("fp8", "fp8", config(136, 152, 1), {"_proj": "fp8-b128"}),
    # the form in which gpt-oss is published: all experts' codes in one tensor, gate and up by turns
    QuantizedCase("gpt-oss-mxfp4", "mxfp4",
                  make_models.gpt_oss(64, 96, vocab_size=61, head_dim=16, num_local_experts=6, num_experts_per_tok=2),
                  {}, layer_scale=0.5),
]


def dequantized(coded: Tensors, name: str) -> torch.Tensor:
    codes, group, _, _ = FORMATS[name]
    inputs = coded["codes"].shape[1]
    if codes == "fp8":
        values = coded["codes"].view(torch.float8_e4m3fn).float()
        scales = coded["scales"].view(torch.float32)
    else:
        zeros = coded.get("zero_points", torch.tensor(8 if codes == "int4" else 128))
        zeros = zeros.float().expand(coded["scales"].shape).repeat_interleave(group or inputs, 1)
        values = coded["codes"].float() - zeros
        scales = coded["scales"].to(torch.int16).view(torch.float16).float()
    return values * scales.repeat_interleave(group or inputs, 1)[:, :inputs]


def scales_of(coded: Tensors, name: str) -> torch.Tensor:
    """[out, groups], of fp8-b128 [out / 128, groups]."""
    codes, _, block, _ = FORMATS[name]
    scales = coded["scales"][::block]
    return scales.view(torch.float32) if codes == "fp8" else scales.to(torch.int16).view(torch.float16)


def parts(method: str, module: str, coded: Tensors, name: str) -> Tensors:
    """What a checkpoint of this method holds for a module."""
    codes, group, _, zeros = FORMATS[name]
    rows, inputs = coded["codes"].shape
    bits = 4 if codes == "int4" else 8
    scales = scales_of(coded, name)
    if codes == "fp8":
        return {f"{module}.weight": coded["codes"].view(torch.float8_e4m3fn),
                f"{module}.{'weight_scale_inv' if method == 'fp8' else 'weight_scale'}": scales}
    if method == "compressed-tensors":
        middle = 1 << (bits - 1)
        signed = lambda values: (values.int() - middle).to(torch.int8)
        result = {"weight_packed": pack_to_int32(signed(coded["codes"]), bits), "weight_scale": scales,
                  "weight_shape": torch.tensor([rows, inputs])}
        if zeros:
            result["weight_zero_point"] = pack_to_int32(signed(coded["zero_points"]), bits, packed_dim=0)
    elif method == "gptq":
        result = {"qweight": pack_rows(coded["codes"].T.int(), bits), "scales": scales.T,
                  "qzeros": pack_rows(coded["zero_points"].int(), bits).T - 0x11111111,
                  "g_idx": (torch.arange(inputs) // group).int()}
    else:
        result = {"qweight": pack_awq(coded["codes"].T.int()), "scales": scales.T,
                  "qzeros": pack_awq(coded["zero_points"].T.int())}
    return {f"{module}.{part}": value for part, value in result.items()}


FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def pack_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks [..., in / 32, 16] and scales [..., in / 32] of a weight [..., in], as OCP's MX rules round."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(dim=-1))) - 2   # 6 is 1.5 * 2^2
    scaled = groups / torch.exp2(exponents)[..., None]
    codes = (scaled.abs()[..., None] - FP4_VALUES).abs().argmin(dim=-1) + 8 * (scaled < 0)
    blocks = (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
    return blocks, (exponents + 127).to(torch.uint8)


@torch.no_grad()
def quantize_experts(model) -> Tensors:
    """The checkpoint's tensors of gpt-oss's experts; the model's weights become what they stand for."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = pack_mxfp4(parameter.transpose(1, 2).contiguous())
            parameter.copy_(convert_moe_packed_tensors(blocks, scales).float())
            tensors.update({f"{name}_blocks": blocks, f"{name}_scales": scales})
    return tensors


def quantization_config(case: QuantizedCase, formats: dict[str, str | None]) -> dict:
    used = sorted({form for form in formats.values() if form})
    plain = [module for module, form in formats.items() if not form]
    if case.method == "gptq":
        return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False,
                "checkpoint_format": "gptq"}
    if case.method == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    if case.method == "mxfp4":
        return {"quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                           "model.embed_tokens", "lm_head"]}
    if case.method == "fp8":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    groups = {}
    for i, form in enumerate(used):
        codes, group, _, zeros = FORMATS[form]
        weights = {"num_bits": 4 if codes == "int4" else 8, "type": "float" if codes == "fp8" else "int",
                   "symmetric": not zeros, "strategy": "group" if group else "channel",
                   **({"group_size": group} if group else {})}
        targets = ["Linear"] if len(used) == 1 else [module for module, its in formats.items() if its == form]
        groups[f"group_{i}"] = {"targets": targets, "weights": weights}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed",
            "format": "float-quantized" if used == ["fp8-row"] else "pack-quantized", "config_groups": groups,
            "ignore": plain}


@torch.no_grad()
def quantize(case: QuantizedCase, model) -> tuple[Tensors, dict[str, str | None]]:
    """The checkpoint's tensors; the model's weights become what they stand for."""
    tensors, formats = quantize_experts(model), {}
    tied = model.config.tie_word_embeddings
    for module_name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            form = case.format_of(module_name)
            formats[module_name] = form
            if form:
                coded = make_quantized.quantize(module.weight.numpy(), form, False)
                module.weight.copy_(dequantized(coded, form))
                tensors.update(parts(case.method, module_name, coded, form))
    for name, value in model.state_dict().items():
        if formats.get(name.removesuffix(".weight")) or f"{name}_blocks" in tensors or (tied and name == "lm_head.weight"):
            continue
        value.copy_(value.bfloat16().float())
        tensors[name] = value.bfloat16()
    return tensors, formats


def search(case: QuantizedCase) -> tuple[object, Tensors, dict, Tensors, dict]:
    """The first seed whose greedy paths have clear gaps and are not degenerate."""
    vocab = case.config.vocab_size
    for seed in range(make_models.MAX_SEEDS):
        generator = torch.Generator().manual_seed(seed)
        model = make_models.build(case.config)
        make_models.randomise(model, case, generator)
        make_models.decide_routers(model, case, generator)
        tensors, formats = quantize(case, model)
        draw = lambda n: torch.randint(0, vocab, (n,), generator=generator).tolist()
        prompt, greedy_prompt = draw(make_models.PROMPT_TOKENS), draw(make_models.GREEDY_PROMPT_TOKENS)
        ragged = [draw(n) for n in make_models.RAGGED_PROMPT_TOKENS]
        routers = make_models.RouterGaps(model)
        path = make_models.greedy(model, greedy_prompt, make_models.GREEDY_TOKENS)
        if make_models.unfit(path, make_models.MIN_DISTINCT_TOKENS):
            continue
        paths = [make_models.greedy(model, p, make_models.RAGGED_GREEDY_TOKENS) for p in ragged]
        if any(make_models.unfit(p, make_models.MIN_RAGGED_DISTINCT_TOKENS) for p in paths):
            continue
        logits = make_models.logits_of(model, prompt)
        if routers.smallest < make_models.MIN_ROUTER_GAP:
            continue
        expected = {"prompt": torch.tensor(prompt, dtype=torch.int32), "logits_f32": logits,
                    "greedy_prompt": torch.tensor(greedy_prompt, dtype=torch.int32),
                    "greedy": torch.tensor(path[0], dtype=torch.int32)}
        for i, (p, (tokens, _)) in enumerate(zip(ragged, paths)):
            expected[f"ragged_prompt_{i}"] = torch.tensor(p, dtype=torch.int32)
            expected[f"ragged_greedy_{i}"] = torch.tensor(tokens, dtype=torch.int32)
        facts = {"seed": seed, "min_relative_gap": min([path[1]] + [gap for _, gap in paths]),
                 "max_abs_logit": logits.abs().max().item()}
        if routers.count:
            facts["min_relative_router_gap"] = routers.smallest
        return model, tensors, formats, expected, facts
    raise SystemExit(f"{case.name}: no seed below {make_models.MAX_SEEDS} will do: change its scales")


compress = PackedQuantizationCompressor.compress.__func__


def compress_with_zero_points(cls: type, state_dict: Tensors, scheme) -> Tensors:
    """compressed-tensors 0.20.1 lays out a model without data first, and forgets there that zero points are packed:
    Transformers would refuse every folder that has them."""
    result = compress(cls, state_dict, scheme)
    zeros = result.get("weight_zero_point")
    if zeros is not None and zeros.device.type == "meta" and zeros.dtype == torch.int8:
        words = -(-zeros.shape[0] * scheme.weights.num_bits // 32)
        result["weight_zero_point"] = torch.empty((words, zeros.shape[1]), dtype=torch.int32, device="meta")
    return result


def check_with_transformers(folder: pathlib.Path, expected: Tensors) -> float:
    """The largest difference of the logits that Transformers gets from the folder itself."""
    dequantize = {}
    if json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp4":
        dequantize = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                 **dequantize).eval()
    logits = make_models.logits_of(model, expected["prompt"].tolist())
    return ((logits - expected["logits_f32"]).abs().max() / expected["logits_f32"].abs().max()).item()


def write(case: QuantizedCase) -> None:
    model, tensors, formats, expected, facts = search(case)
    folder = HERE / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fields = case.config.to_dict()
    fields["dtype"] = "bfloat16"
    fields["architectures"] = [type(model).__name__]
    published = make_models.publish_style(make_models.Case("", None, None, drop=("layer_types",)), fields)
    published["quantization_config"] = quantization_config(case, formats)
    (folder / "config.json").write_text(json.dumps(published, indent=2, sort_keys=True) + "\n")
    contiguous = lambda values: {name: value.contiguous() for name, value in values.items()}
    safetensors.torch.save_file(contiguous(tensors), folder / "model.safetensors", {"format": "pt"})
    safetensors.torch.save_file(contiguous(expected), folder / "expected.safetensors", {"format": "pt"})
    facts = {"case": case.name, "method": case.method, "formats": sorted({f for f in formats.values() if f} or {"mxfp4"}),
             "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
             "numpy": numpy.__version__, **facts}
    if case.method in ("compressed-tensors", "mxfp4"):
        facts["transformers_max_relative"] = check_with_transformers(folder, expected)
        assert facts["transformers_max_relative"] < 1e-6, facts
    (folder / "expected.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(facts)


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    PackedQuantizationCompressor.compress = classmethod(compress_with_zero_points)
    for case in CASES:
        if len(sys.argv) < 2 or case.name in sys.argv[1:]:
            write(case)
    (HERE / "cases.json").write_text(json.dumps([case.name for case in CASES], indent=2) + "\n")


if __name__ == "__main__":
    main()
