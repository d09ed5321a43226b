# SPDX-License-Identifier: Apache-2.0
"""MLX's affine quantisation in groups of 64 (CPU rounding: halves to even): codes for export, fake quantisation for training."""
import torch

GROUP = 64


def affine(w, bits):
    """(codes, scale, bias) of w [.., k]: f32 [.., k/64, 64], bf16 [.., k/64] each, from the bf16 values of w."""
    g = w.bfloat16().float().unflatten(-1, (-1, GROUP))
    n = 2 ** bits - 1
    high, low = g.amax(-1, keepdim=True), g.amin(-1, keepdim=True)
    s = ((high - low) / n).clamp(min=1e-7)
    positive = low.abs() > high.abs()
    s = torch.where(positive, s, -s)
    edge = torch.where(positive, low, high)
    q0 = torch.round(edge / s)
    at_zero = q0 == 0
    s = torch.where(at_zero, s, edge / torch.where(at_zero, torch.ones_like(q0), q0))
    bias = torch.where(at_zero, torch.zeros_like(edge), edge)
    q = torch.round((g - bias) / s).clamp(0, n)
    return q, s.squeeze(-1).bfloat16(), bias.squeeze(-1).bfloat16()


def rounded(w, bits):
    """w as the engine will read it: bf16(scale * code + bias); the gradient passes through unchanged."""
    q, s, b = affine(w.detach(), bits)
    value = (s.float().unsqueeze(-1) * q + b.float().unsqueeze(-1)).flatten(-2).bfloat16()
    return value + (w.bfloat16() - w.detach().bfloat16())


def pack(codes, bits):
    """U32 words, code 0 in the lowest bits; as int32 [.., k * bits / 32]."""
    per = 32 // bits
    c = codes.flatten(-2).to(torch.int64).unflatten(-1, (-1, per))
    word = (c << (torch.arange(per, device=c.device) * bits)).sum(-1)
    return torch.where(word >= 2 ** 31, word - 2 ** 32, word).to(torch.int32)


def unpack(words, scale, bias):
    """f32 [.., k]; the number of bits follows from the shapes.  words: int32 or uint32."""
    k = scale.shape[-1] * GROUP
    bits = 32 * words.shape[-1] // k
    w = words.to(torch.int64) & 0xFFFFFFFF
    shift = torch.arange(32 // bits, device=w.device) * bits
    q = ((w.unsqueeze(-1) >> shift) & (2 ** bits - 1)).flatten(-2).unflatten(-1, (-1, GROUP)).float()
    return (scale.float().unsqueeze(-1) * q + bias.float().unsqueeze(-1)).flatten(-2)
