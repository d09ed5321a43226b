# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the on-disk format of the family's MLX checkpoints: config.json, safetensors, affine 4 and 8 bit."""
import json
import struct
from pathlib import Path

import torch

import quant
from model import Config, shapes

PREFIX = "language_model."
DTYPES = {"U32": torch.int32, "BF16": torch.bfloat16, "F32": torch.float32}


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    for name, h in header.items():
        begin, end = h["data_offsets"]
        raw = bytearray(data[8 + length + begin:8 + length + end])
        yield name, torch.frombuffer(raw, dtype=DTYPES[h["dtype"]]).view(h["shape"])


def load(folder, dtype):
    """(Config, weights) of a checkpoint folder, dequantised (f32 product and sum, then one rounding to dtype)."""
    folder = Path(folder)
    raw, config = {}, json.loads((folder / "config.json").read_text())
    for path in sorted(folder.glob("*.safetensors")):
        raw.update(read_safetensors(path))
    weights = {}
    for name, t in raw.items():
        if not name.startswith(PREFIX):
            continue
        base, _, last = name[len(PREFIX):].rpartition(".")
        if last == "weight" and name.replace(".weight", ".scales") in raw:
            t = quant.unpack(t, raw[name.replace(".weight", ".scales")], raw[name.replace(".weight", ".biases")])
        elif last in ("scales", "biases"):
            continue
        if last not in ("weight",):
            base = f"{base}.{last}"
        weights[base] = t.squeeze(-1).to(dtype) if base.endswith("conv1d") else t.to(dtype)
    return Config(config["text_config"]), weights


def write_safetensors(path, tensors):
    """MLX's form: no padding, so the data begins wherever the header ends; here at an odd byte, as in published files."""
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    names = {torch.int32: "U32", torch.bfloat16: "BF16", torch.float32: "F32"}
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"))
    if len(text) % 2 == 0:
        text += " "
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text.encode())
        for t in tensors.values():
            f.write(t.contiguous().view(torch.uint8).numpy().tobytes())


def save(folder, c, weights, special):
    """Quantises f32 weights and writes model.safetensors, its index and config.json.  special: token -> id."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors, overrides = {}, {}
    for name, (shape, bits) in shapes(c).items():
        w, full = weights[name].detach().float().cpu(), PREFIX + name
        if bits:
            q, s, b = quant.affine(w, bits)
            tensors[full + ".weight"], tensors[full + ".scales"], tensors[full + ".biases"] = quant.pack(q, bits), s, b
            if bits != 4:
                overrides[full] = {"bits": bits, "group_size": 64}
        else:
            t = w.bfloat16()
            tensors[full if name.endswith(("A_log", "dt_bias")) else full + ".weight"] = t.unsqueeze(-1) if name.endswith("conv1d") else t
    write_safetensors(folder / "model.safetensors", tensors)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": {n: "model.safetensors" for n in sorted(tensors)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
    (folder / "config.json").write_text(json.dumps(config_json(c, overrides, special), indent=4, sort_keys=True))


def config_json(c, overrides, special):
    q = {"bits": 4, "group_size": 64, "mode": "affine", **overrides}
    end, stop = special["<|endoftext|>"], special["<|im_end|>"]
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": end, "dtype": "bfloat16", "eos_token_id": end,
        "full_attention_interval": 4, "head_dim": c.d, "hidden_act": "silu", "hidden_size": c.hidden, "initializer_range": 0.02,
        "layer_types": ["full_attention" if f else "linear_attention" for f in c.full], "linear_conv_kernel_dim": 4, "linear_key_head_dim": c.dk,
        "linear_num_key_heads": c.hk, "linear_num_value_heads": c.hv, "linear_value_head_dim": c.dv, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 2048, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": c.inner, "num_attention_heads": c.nq,
        "num_experts": c.experts, "num_experts_per_tok": c.top, "num_hidden_layers": c.layers, "num_key_value_heads": c.nkv, "output_router_logits": False,
        "pad_token_id": None, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": c.shared, "tie_word_embeddings": True, "use_cache": True, "vocab_size": c.vocab}
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "eos_token_id": [stop, end], "image_token_id": special["<|image_pad|>"],
            "model_type": "qwen3_5_moe", "quantization": q, "quantization_config": q, "text_config": text, "tie_word_embeddings": True,
            "transformers_version": "4.57.1", "video_token_id": special["<|video_pad|>"], "vision_end_token_id": special["<|vision_end|>"],
            "vision_start_token_id": special["<|vision_start|>"]}
