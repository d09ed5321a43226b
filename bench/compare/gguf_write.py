# SPDX-License-Identifier: Apache-2.0
"""A GGUF file with random weights in the shape of Qwen3.6-35B-A3B, for engines that read GGUF.

Matrices are Q4_0 (18 bytes for 32 weights, as many bytes a weight as 4-bit groups of 64 with scale and bias); router,
shared gate, convolution and vectors are F32, as the usual conversion leaves them. The routing must be even: with plain
random weights all tokens run into the same few experts, and an engine looks faster than it is. Here the embeddings are large
beside what the layers add to the residual stream, so each token keeps a direction of its own and random router rows see
independent inputs. routing.c counts in the running engine whether that holds.

Every chunk of a tensor is made from its own key, so the file does not depend on the number of processes. Only the standard
library is used. Format: github.com/ggml-org/ggml, docs/gguf.md, version 3; block layout: block_q4_0 of the same repository.
"""
import dataclasses
import math
import multiprocessing
import os
import random
import statistics
import struct

RECIPE = 1                         # counts up when a file of the same size gets other numbers
F32, Q4_0 = 0, 2                   # tensor types of the format
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9  # value types of the format
BLOCK, BLOCK_BYTES = 32, 18        # Q4_0: an f16 scale and 32 codes, value (code - 8) * scale
ALIGNMENT = 32
CHUNK_BYTES = 8 << 20              # of one job, rounded down to whole blocks
EMBED_STD = 30.0                   # beside branches of about 1: keeps the residual stream a token's own
ARCHITECTURE = "qwen35moe"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Counts of the model; the defaults are those of the published one."""
    layers: int = 40
    hidden: int = 2048
    vocab: int = 248320
    experts: int = 256
    top_k: int = 8
    inner: int = 512               # of an expert, and of the shared one
    q_heads: int = 16
    kv_heads: int = 2
    head: int = 256
    rotary: int = 64
    gdn_key_heads: int = 16
    gdn_value_heads: int = 32
    gdn_head: int = 128
    taps: int = 4

    def is_attention(self, layer):
        return layer % 4 == 3


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    dims: tuple    # row-major: the last one is the input width, contiguous
    type: int
    kind: str      # how its values are made: "matrix", "embedding", or a key of VECTORS

    def n_bytes(self):
        n = math.prod(self.dims)
        return 4 * n if self.type == F32 else n // BLOCK * BLOCK_BYTES


def tensors(shape):
    """All tensors, in the order of the file."""
    s, out = shape, []

    def matrix(name, *dims, kind="matrix"):
        assert dims[-1] % BLOCK == 0, f"{name}: rows of {dims[-1]} weights are no whole blocks of {BLOCK}"
        out.append(Tensor(name + ".weight", dims, Q4_0, kind))

    def vector(name, kind, *dims):
        out.append(Tensor(name, dims, F32, kind))

    value = s.gdn_value_heads * s.gdn_head
    channels = 2 * s.gdn_key_heads * s.gdn_head + value
    matrix("token_embd", s.vocab, s.hidden, kind="embedding")
    vector("output_norm.weight", "gain", s.hidden)
    matrix("output", s.vocab, s.hidden)
    for i in range(s.layers):
        p = f"blk.{i}."
        vector(p + "attn_norm.weight", "gain", s.hidden)
        vector(p + "post_attention_norm.weight", "gain", s.hidden)
        if s.is_attention(i):
            matrix(p + "attn_q", 2 * s.q_heads * s.head, s.hidden)  # queries and their output gates
            matrix(p + "attn_k", s.kv_heads * s.head, s.hidden)
            matrix(p + "attn_v", s.kv_heads * s.head, s.hidden)
            matrix(p + "attn_output", s.hidden, s.q_heads * s.head)
            vector(p + "attn_q_norm.weight", "gain", s.head)
            vector(p + "attn_k_norm.weight", "gain", s.head)
        else:
            matrix(p + "attn_qkv", channels, s.hidden)
            matrix(p + "attn_gate", value, s.hidden)
            vector(p + "ssm_conv1d.weight", "tap", channels, s.taps)
            vector(p + "ssm_dt.bias", "step", s.gdn_value_heads)
            vector(p + "ssm_a", "decay", s.gdn_value_heads)
            matrix(p + "ssm_beta", s.gdn_value_heads, s.hidden)
            matrix(p + "ssm_alpha", s.gdn_value_heads, s.hidden)
            vector(p + "ssm_norm.weight", "gain", s.gdn_head)
            matrix(p + "ssm_out", s.hidden, value)
        vector(p + "ffn_gate_inp.weight", "router", s.experts, s.hidden)
        vector(p + "ffn_gate_inp_shexp.weight", "router", s.hidden)
        matrix(p + "ffn_gate_exps", s.experts, s.inner, s.hidden)
        matrix(p + "ffn_up_exps", s.experts, s.inner, s.hidden)
        matrix(p + "ffn_down_exps", s.experts, s.hidden, s.inner)
        matrix(p + "ffn_gate_shexp", s.inner, s.hidden)
        matrix(p + "ffn_up_shexp", s.inner, s.hidden)
        matrix(p + "ffn_down_shexp", s.hidden, s.inner)
    return out


def total_bytes(shape):
    return sum(t.n_bytes() for t in tensors(shape))


def active_bytes(shape):
    """Weight bytes that one decoded token reads: one embedding row, top_k of the experts, the rest whole."""
    total = 0
    for t in tensors(shape):
        n = t.n_bytes()
        if t.kind == "embedding":
            n //= shape.vocab
        elif "_exps." in t.name:
            n = n * shape.top_k // shape.experts
        total += n
    return total


# ---- values ----

def quantiles(inverse):
    """256 equally likely values of a distribution, given its inverse."""
    return [inverse((i + 0.5) / 256) for i in range(256)]


NORMAL = statistics.NormalDist()
VECTORS = {
    "gain": quantiles(lambda p: 1 + 0.05 * NORMAL.inv_cdf(p)),
    "tap": quantiles(lambda p: 0.3 * NORMAL.inv_cdf(p)),
    "step": quantiles(lambda p: -4 + 3 * p),
    "decay": quantiles(lambda p: -(0.1 + 7.9 * p)),
    "router": quantiles(NORMAL.inv_cdf),  # divided by the root of the width
}


def vector_bytes(rng, n, values):
    """n floats, each one of 256 values with random lower bits (under a hundredth of the value)."""
    tops = [struct.pack("<f", v) for v in values]
    out = bytearray(rng.randbytes(4 * n))
    pick = rng.randbytes(n)
    out[2::4] = pick.translate(bytes(t[2] for t in tops))
    out[3::4] = pick.translate(bytes(t[3] for t in tops))
    return out


def matrix_bytes(rng, n_blocks, std):
    """Random Q4_0 blocks whose weights have this deviation, and mean zero since scales have either sign.

    Codes 0..15 less 8 have mean -0.5 and a root mean square of 4.64; a scale is 0.5 to 1.5 times its mean, root mean
    square 1.04. Of a scale the upper byte (sign, exponent, two bits) is drawn from a table, the lower byte is random.
    """
    base = std / (4.64 * 1.04)
    top = [struct.pack("<e", (0.5 + i / 256) * base * (-1 if i % 2 else 1))[1] for i in range(256)]
    out = bytearray(rng.randbytes(n_blocks * BLOCK_BYTES))
    out[1::BLOCK_BYTES] = rng.randbytes(n_blocks).translate(bytes(top))
    return out


def chunk_bytes(tensor, seed, first, n):
    """Bytes [first, first + n) of a tensor; both are multiples of its chunk, but for the last."""
    rng = random.Random(f"{seed}/{tensor.name}/{first}")
    if tensor.type == F32:
        values = VECTORS[tensor.kind]
        if tensor.kind == "router":
            values = [v / math.sqrt(tensor.dims[-1]) for v in values]
        return vector_bytes(rng, n // 4, values)
    std = EMBED_STD if tensor.kind == "embedding" else 1 / math.sqrt(tensor.dims[-1])
    return matrix_bytes(rng, n // BLOCK_BYTES, std)


# ---- format ----

def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def keys(shape):
    """(name, value type, value) of the file's metadata."""
    s, a = shape, ARCHITECTURE + "."
    counts = {
        "block_count": s.layers, "context_length": 262144, "embedding_length": s.hidden, "feed_forward_length": s.inner,
        "attention.head_count": s.q_heads, "attention.head_count_kv": s.kv_heads, "attention.key_length": s.head,
        "attention.value_length": s.head, "rope.dimension_count": s.rotary, "expert_count": s.experts,
        "expert_used_count": s.top_k, "expert_feed_forward_length": s.inner, "expert_shared_feed_forward_length": s.inner,
        "ssm.conv_kernel": s.taps, "ssm.state_size": s.gdn_head, "ssm.group_count": s.gdn_key_heads,
        "ssm.time_step_rank": s.gdn_value_heads, "ssm.inner_size": s.gdn_value_heads * s.gdn_head,
        "full_attention_interval": 4, "vocab_size": s.vocab,
    }
    yield "general.architecture", STRING, ARCHITECTURE
    yield "general.name", STRING, f"random weights, {s.layers} layers"
    yield "general.file_type", UINT32, 2
    for name, value in counts.items():
        yield a + name, UINT32, value
    yield a + "attention.layer_norm_rms_epsilon", FLOAT32, 1e-6
    yield a + "rope.freq_base", FLOAT32, 1e7
    n = s.rotary // 2  # frequencies, dealt out to the three position counters; text has one position for all
    yield a + "rope.dimension_sections", ARRAY, [(n + 2) // 3, (n + 1) // 3, n // 3, 0]
    yield "tokenizer.ggml.model", STRING, "none"


def key_bytes(name, kind, value):
    head = text(name) + struct.pack("<I", kind)
    if kind == STRING:
        return head + text(value)
    if kind == ARRAY:
        return head + struct.pack(f"<IQ{len(value)}i", INT32, len(value), *value)
    return head + struct.pack("<I" if kind == UINT32 else "<f", value)


def aligned(n):
    return -(-n // ALIGNMENT) * ALIGNMENT


def header(shape):
    """(header padded to where the data begins, [(tensor, offset in the file)], size of the file)."""
    metadata, plan = list(keys(shape)), tensors(shape)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(plan), len(metadata)))
    for key in metadata:
        out += key_bytes(*key)
    at, offsets = 0, []
    for t in plan:
        out += text(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *reversed(t.dims), t.type, at)
        offsets.append(at)
        at += aligned(t.n_bytes())
    out += bytes(aligned(len(out)) - len(out))
    return bytes(out), [(t, len(out) + o) for t, o in zip(plan, offsets)], len(out) + at


def write_chunk(job):
    path, tensor, seed, first, n, at = job
    data, done = memoryview(chunk_bytes(tensor, seed, first, n)), 0
    fd = os.open(path, os.O_WRONLY)
    try:
        while done < n:
            done += os.pwrite(fd, data[done:], at + first + done)
    finally:
        os.close(fd)
    return n


def write(path, shape, seed=1, processes=1, say=lambda done, total: None):
    """Writes the file, at first under another name, so that a file of the right name is whole."""
    head, plan, size = header(shape)
    part = f"{path}.part"
    with open(part, "wb") as f:
        f.write(head)
        f.truncate(size)
    per = CHUNK_BYTES // (4 * BLOCK_BYTES) * (4 * BLOCK_BYTES)
    jobs = [(part, t, seed, first, min(per, t.n_bytes() - first), at)
            for t, at in plan for first in range(0, t.n_bytes(), per)]
    done, total = 0, sum(t.n_bytes() for t, _ in plan)
    with multiprocessing.Pool(processes) as pool:
        for n in pool.imap_unordered(write_chunk, jobs):
            done += n
            say(done, total)
    os.replace(part, path)
    return size
