# SPDX-License-Identifier: Apache-2.0
"""The architecture of Qwen3.6-35B-A3B in short PyTorch, for training and for checking.

Weights are a dict of tensors named as in the checkpoint, without "language_model." and ".weight".
  Model(config).init()       fresh f32 weights
  effective(weights, ...)    what a step computes with: bf16, fake-quantised or not
  train_loss(...)            rows of packed documents, the delta rule in chunks of 64
  decode_step(...)           one token for each of many sequences, the recurrence itself
All experts are computed for every token and masked by the routing weights: at this size faster than sorting.
"""
import math

import torch
import torch.nn.functional as F

import quant

EPS = 1e-6
CHUNK = 64


class Config:
    """The counts of config.json's text_config; the defaults are those of the mini model."""

    def __init__(self, text=None):
        t = text or {}
        self.hidden = t.get("hidden_size", 256)
        self.layers = t.get("num_hidden_layers", 8)
        self.full = [x == "full_attention" for x in t.get("layer_types", [])] or [i % 4 == 3 for i in range(self.layers)]
        self.experts, self.top = t.get("num_experts", 16), t.get("num_experts_per_tok", 4)
        self.inner, self.shared = t.get("moe_intermediate_size", 64), t.get("shared_expert_intermediate_size", 64)
        self.hk, self.hv = t.get("linear_num_key_heads", 2), t.get("linear_num_value_heads", 4)
        self.dk, self.dv = 128, 128
        self.nq, self.nkv, self.d = t.get("num_attention_heads", 4), t.get("num_key_value_heads", 1), 256
        self.rot, self.theta = 64, 1e7
        self.vocab = t.get("vocab_size", 4096)
        self.kd, self.vd = self.hk * self.dk, self.hv * self.dv
        self.cc = 2 * self.kd + self.vd


def shapes(c):
    """{name: (shape, bits)}; bits 4 or 8 for quantised matrices, 0 for bf16 tensors."""
    out = {"model.embed_tokens": ((c.vocab, c.hidden), 4), "model.norm": ((c.hidden,), 0)}
    for n in range(c.layers):
        p = f"model.layers.{n}."
        out[p + "input_layernorm"] = ((c.hidden,), 0)
        out[p + "post_attention_layernorm"] = ((c.hidden,), 0)
        out[p + "mlp.gate"] = ((c.experts, c.hidden), 8)
        out[p + "mlp.shared_expert_gate"] = ((1, c.hidden), 8)
        out[p + "mlp.switch_mlp.gate_proj"] = ((c.experts, c.inner, c.hidden), 4)
        out[p + "mlp.switch_mlp.up_proj"] = ((c.experts, c.inner, c.hidden), 4)
        out[p + "mlp.switch_mlp.down_proj"] = ((c.experts, c.hidden, c.inner), 4)
        out[p + "mlp.shared_expert.gate_proj"] = ((c.shared, c.hidden), 4)
        out[p + "mlp.shared_expert.up_proj"] = ((c.shared, c.hidden), 4)
        out[p + "mlp.shared_expert.down_proj"] = ((c.hidden, c.shared), 4)
        if c.full[n]:
            out[p + "self_attn.q_proj"] = ((2 * c.nq * c.d, c.hidden), 4)
            out[p + "self_attn.k_proj"] = ((c.nkv * c.d, c.hidden), 4)
            out[p + "self_attn.v_proj"] = ((c.nkv * c.d, c.hidden), 4)
            out[p + "self_attn.o_proj"] = ((c.hidden, c.nq * c.d), 4)
            out[p + "self_attn.q_norm"] = ((c.d,), 0)
            out[p + "self_attn.k_norm"] = ((c.d,), 0)
        else:
            out[p + "linear_attn.in_proj_qkv"] = ((c.cc, c.hidden), 4)
            out[p + "linear_attn.in_proj_z"] = ((c.vd, c.hidden), 4)
            out[p + "linear_attn.in_proj_b"] = ((c.hv, c.hidden), 4)
            out[p + "linear_attn.in_proj_a"] = ((c.hv, c.hidden), 4)
            out[p + "linear_attn.out_proj"] = ((c.hidden, c.vd), 4)
            out[p + "linear_attn.conv1d"] = ((c.cc, 4), 0)
            out[p + "linear_attn.A_log"] = ((c.hv,), 0)
            out[p + "linear_attn.dt_bias"] = ((c.hv,), 0)
            out[p + "linear_attn.norm"] = ((c.dv,), 0)
    return out


def init(c, seed, device="cpu"):
    gen = torch.Generator().manual_seed(seed)
    weights = {}
    for name, (shape, _) in shapes(c).items():
        if name.endswith(("norm", "layernorm")):
            w = torch.ones(shape)
        elif name.endswith("A_log"):
            w = torch.log(1 + 15 * torch.rand(shape, generator=gen))
        elif name.endswith("dt_bias"):
            dt = torch.exp(math.log(0.001) + torch.rand(shape, generator=gen) * math.log(100.0))
            w = dt + torch.log(-torch.expm1(-dt))
        elif name.endswith("conv1d"):
            w = (torch.rand(shape, generator=gen) * 2 - 1) * 0.5
        else:
            w = torch.randn(shape, generator=gen)
            if name.endswith(("embed_tokens", "mlp.gate", "shared_expert_gate")):
                w *= 0.02
            else:
                w *= 0.6 / math.sqrt(shape[-1]) * (0.25 if name.endswith(("down_proj", "out_proj", "o_proj")) else 1)
        weights[name] = w.to(device)
    return weights


def effective(c, weights, fake_quant):
    """bf16 working copies of the f32 weights."""
    return {n: quant.rounded(weights[n], bits) if fake_quant and bits else weights[n].bfloat16() for n, (_, bits) in shapes(c).items()}


# ---------------------------------------------------------------- common parts

def rms(x, gain):
    f = x.float()
    return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + EPS) * gain.float()).to(x.dtype)


def unit(x):
    f = x.float()
    return f * torch.rsqrt(f.pow(2).sum(-1, keepdim=True) + EPS)


def rope_table(c, n, device):
    freq = c.theta ** (-torch.arange(c.rot // 2, dtype=torch.float64, device=device) * 2 / c.rot)
    angle = torch.arange(n, dtype=torch.float64, device=device)[:, None] * freq
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin, rot):
    """x [.., d]; cos, sin broadcast over [.., rot / 2]."""
    a, b, rest = x[..., :rot // 2].float(), x[..., rot // 2:rot].float(), x[..., rot:]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), rest], -1)


def moe(x, u, top, w_gate, w_sgate, e_gate, e_up, e_down, s_gate, s_up, s_down):
    """x + MoE(u); also (share of tokens, mean probability) of each expert for the balance loss.  x, u [m, hidden]."""
    n_exp, inner, hidden = e_gate.shape
    r = u.float() @ w_gate.float().t()
    work = r.detach()
    for _ in range(top):
        work = torch.where(work >= work.amax(-1, keepdim=True), float("-inf"), work)
    chosen = work == float("-inf")
    route = torch.softmax(r.masked_fill(~chosen, float("-inf")), -1)
    shared = torch.sigmoid(u.float() @ w_sgate.float().t())
    factor = torch.cat([route.unsqueeze(-1).expand(-1, -1, inner).flatten(1), shared.expand(-1, s_gate.shape[0])], -1).to(u.dtype)
    gate = u @ torch.cat([e_gate.flatten(0, 1), s_gate]).t()
    up = u @ torch.cat([e_up.flatten(0, 1), s_up]).t()
    act = F.silu(gate.float()).to(u.dtype) * up * factor
    down = torch.cat([e_down.permute(1, 0, 2).reshape(hidden, n_exp * inner), s_down], 1)
    return x + act @ down.t(), chosen.float().mean(0), torch.softmax(r, -1).mean(0)


MOE_NAMES = ["mlp.gate", "mlp.shared_expert_gate", "mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj", "mlp.switch_mlp.down_proj",
             "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"]
GDN_NAMES = ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj", "conv1d", "A_log", "dt_bias", "norm"]
ATT_NAMES = ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"]


def layer_weights(w, n, names, part=""):
    return [w[f"model.layers.{n}.{part}{x}"] for x in names]


# ---------------------------------------------------------------- training: whole rows

if torch.cuda.is_available():
    import triton
    import triton.language as tl

    @triton.jit
    def _invert_kernel(a_ptr, t_ptr, N: tl.constexpr):
        """T = (I + A)^-1 of one strictly lower triangular [N, N] matrix, row by row."""
        base = tl.program_id(0) * N * N
        rows, cols = tl.arange(0, N), tl.arange(0, N)
        t = tl.where(rows[:, None] == cols[None, :], 1.0, 0.0)
        for i in range(1, N):
            a = tl.load(a_ptr + base + i * N + rows)
            t = tl.where(rows[:, None] == i, t - tl.sum(a[:, None] * t, 0)[None, :], t)
        tl.store(t_ptr + base + rows[:, None] * N + cols[None, :], t)


class Invert(torch.autograd.Function):
    """(I + A)^-1 for strictly lower triangular A [.., C, C], f32."""

    @staticmethod
    def forward(ctx, a):
        a = a.contiguous()
        if a.is_cuda:
            t = torch.empty_like(a)
            _invert_kernel[(a.numel() // (CHUNK * CHUNK),)](a, t, CHUNK, num_warps=2)
        else:
            eye = torch.eye(a.shape[-1], dtype=a.dtype)
            t = torch.linalg.solve_triangular(eye + a, eye.expand_as(a), upper=False, unitriangular=True)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, dt):
        (t,) = ctx.saved_tensors
        tt = t.transpose(-1, -2)
        return -(tt @ dt @ tt).tril(-1)


class Embed(torch.autograd.Function):
    """Rows of the embedding; the gradient as one product with the one-hot matrix, which has no trouble with frequent tokens."""

    @staticmethod
    def forward(ctx, embed, tokens):
        ctx.save_for_backward(tokens)
        ctx.vocab = embed.shape[0]
        return embed[tokens]

    @staticmethod
    def backward(ctx, g):
        (tokens,) = ctx.saved_tensors
        hot = (tokens.flatten()[:, None] == torch.arange(ctx.vocab, device=g.device)).to(g.dtype)
        return hot.t() @ g.flatten(0, -2), None


class Scan(torch.autograd.Function):
    """States before each chunk: S_0 = 0, S_{c+1} = M_c S_c + N_c.  m, n [chunks, batch, dk, dk | dv] -> [chunks, batch, dk, dv]."""

    @staticmethod
    def forward(ctx, m, n):
        s = torch.empty_like(n)
        s[0].zero_()
        for c in range(n.shape[0] - 1):
            torch.baddbmm(n[c], m[c], s[c], out=s[c + 1])
        ctx.save_for_backward(m, s)
        return s

    @staticmethod
    def backward(ctx, ds):
        m, s = ctx.saved_tensors
        total = torch.empty_like(ds)  # gradient with respect to each state, through all later ones
        total[-1].copy_(ds[-1])
        for c in range(ds.shape[0] - 2, -1, -1):
            torch.baddbmm(ds[c], m[c].transpose(1, 2), total[c + 1], out=total[c])
        dm, dn = torch.zeros_like(m), torch.zeros_like(ds)
        torch.bmm(total[1:].flatten(0, 1), s[:-1].flatten(0, 1).transpose(1, 2), out=dm[:-1].flatten(0, 1))
        dn[:-1] = total[1:]
        return dm, dn


def gdn_before(x, same, start, hk, ln, w_qkv, w_z, w_a, w_b, conv, a_log, dt_bias):
    """Projections, convolution, gates; the chunk matrices.  same [b, t, 3]: is the token 1, 2, 3 places back in the document?"""
    b, t, _ = x.shape
    u = rms(x, ln)
    qkv, z, a, beta = u @ w_qkv.t(), u @ w_z.t(), (u @ w_a.t()).float(), torch.sigmoid((u @ w_b.t()).float())
    taps = conv.float()
    f = qkv.float()
    y = f * taps[:, 3]
    for back in (1, 2, 3):
        y = y + F.pad(f, (0, 0, back, 0))[:, :t] * taps[:, 3 - back] * same[:, :, back - 1:back]
    y = F.silu(y)
    hv, kd = a_log.shape[0], hk * 128
    rep = hv // hk
    q = unit(y[..., :kd].unflatten(-1, (hk, 128))) * 128 ** -0.5
    k = unit(y[..., kd:2 * kd].unflatten(-1, (hk, 128)))
    v = y[..., 2 * kd:].unflatten(-1, (hv, 128))
    g = -torch.exp(a_log.float()) * F.softplus(a + dt_bias.float())
    g = torch.where(start[..., None], -60.0, g)

    def chunks(i, repeat):  # [b, t, h, ..] -> [chunk, b, head, C, ..]
        i = i.unflatten(1, (t // CHUNK, CHUNK)).transpose(2, 3).transpose(0, 1)
        return i.repeat_interleave(repeat, 2) if repeat > 1 else i

    q, k, v = chunks(q, rep), chunks(k, rep), chunks(v, 1)
    beta = chunks(beta.unsqueeze(-1), 1)
    cum = chunks(g.unsqueeze(-1), 1).squeeze(-1).cumsum(-1)
    diff = cum.unsqueeze(-1) - cum.unsqueeze(-2)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
    decay = torch.where(lower, diff, float("-inf")).exp()
    kk = k @ k.transpose(-1, -2)
    amat = (beta * decay * kk).tril(-1)
    p = decay * (q @ k.transpose(-1, -2))
    return z, q, k, v, beta, cum, amat, p


def gdn_middle(tmat, k, v, beta, cum):
    """U, W and the transition (M, N) of each chunk."""
    e = cum.exp().unsqueeze(-1)
    u = tmat @ (beta * v)
    w = tmat @ (beta * e * k)
    kt = ((cum[..., -1:] - cum).exp().unsqueeze(-1) * k).transpose(-1, -2)
    last = cum[..., -1].exp()[..., None, None]
    m = torch.eye(k.shape[-1], device=k.device) * last - kt @ w
    return u, w, m.flatten(1, 2), (kt @ u).flatten(1, 2)


def gdn_after(x, s, u, w, p, q, cum, z, w_out, norm):
    b, t, _ = x.shape
    s = s.unflatten(1, (b, -1))
    o = (cum.exp().unsqueeze(-1) * q) @ s + p @ (u - w @ s)
    o = o.transpose(0, 1).transpose(2, 3).flatten(1, 2)  # [b, t, hv, 128]
    o = o.to(x.dtype).float()
    y = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + EPS) * norm.float() * F.silu(z.float().unflatten(-1, (-1, 128)))
    return x + y.flatten(2).to(x.dtype) @ w_out.t()


def attention(x, doc, cos, sin, shape, ln, w_q, w_k, w_v, w_o, q_norm, k_norm):
    """doc [b, t]: number of the document; a token sees the earlier tokens of its own."""
    nq, nkv, d, rot = shape
    b, t, _ = x.shape
    u = rms(x, ln)
    q, gate = (u @ w_q.t()).unflatten(-1, (nq, 2 * d)).split(d, -1)
    k, v = (u @ w_k.t()).unflatten(-1, (nkv, d)), (u @ w_v.t()).unflatten(-1, (nkv, d))
    q, k = rms(q, q_norm), rms(k, k_norm)
    q, k = rotate(q, cos[:, None], sin[:, None], rot), rotate(k, cos[:, None], sin[:, None], rot)
    q = q.transpose(1, 2).unflatten(1, (nkv, nq // nkv)).flatten(2, 3)  # [b, nkv, rep * t, d]
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    scores = (q @ k.transpose(-1, -2)).unflatten(2, (nq // nkv, t))
    ok = (doc[:, :, None] == doc[:, None, :]) & torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
    prob = torch.softmax(torch.where(ok[:, None, None], scores.float() * d ** -0.5, float("-inf")), -1).to(x.dtype)
    o = (prob.flatten(2, 3) @ v).unflatten(2, (nq // nkv, t)).flatten(1, 2).transpose(1, 2)
    y = o * torch.sigmoid(gate.float()).to(x.dtype)
    return x + y.flatten(2) @ w_o.t()


def moe_block(x, top, ln, *weights):
    flat = x.flatten(0, 1)
    y, share, prob = moe(flat, rms(flat, ln), top, *weights)
    return y.view_as(x), (share * prob).sum() * share.numel()


def head_loss(x, norm, embed, targets, weight):
    """Weighted sum of -log p, sum of weights, and both for the answer tokens (weight 1) alone."""
    logits = (rms(x, norm) @ embed.t()).float()
    at = torch.arange(logits.shape[-1], device=x.device) == targets.unsqueeze(-1)
    nll = torch.logsumexp(logits, -1) - torch.where(at, logits, 0.0).sum(-1)
    answer = (weight == 1).float()
    return (nll * weight).sum() / weight.sum(), (nll.detach() * answer).sum(), answer.sum()


COMPILED = {}


def fn(f, compile_):
    if not compile_:
        return f
    if f not in COMPILED:
        COMPILED[f] = torch.compile(f, dynamic=False)
    return COMPILED[f]


def hidden_states(c, w, tokens, start, cos, sin, compile_=False):
    """Residual stream [b, t, hidden] after the last layer and the balance losses.  tokens [b, t], start [b, t] bool."""
    doc = start.long().cumsum(1)
    back = [F.pad(doc, (n, 0), value=-1)[:, :doc.shape[1]] == doc for n in (1, 2, 3)]
    same = torch.stack(back, -1).float()
    x = Embed.apply(w["model.embed_tokens"], tokens)
    balance = 0.0
    for n in range(c.layers):
        ln = w[f"model.layers.{n}.input_layernorm"]
        if c.full[n]:
            x = fn(attention, compile_)(x, doc, cos, sin, (c.nq, c.nkv, c.d, c.rot), ln, *layer_weights(w, n, ATT_NAMES, "self_attn."))
        else:
            w_qkv, w_z, w_a, w_b, w_out, conv, a_log, dt_bias, norm = layer_weights(w, n, GDN_NAMES, "linear_attn.")
            z, q, k, v, beta, cum, amat, p = fn(gdn_before, compile_)(x, same, start, c.hk, ln, w_qkv, w_z, w_a, w_b, conv, a_log, dt_bias)
            u, ww, m, nn = fn(gdn_middle, compile_)(Invert.apply(amat), k, v, beta, cum)
            x = fn(gdn_after, compile_)(x, Scan.apply(m.contiguous(), nn.contiguous()), u, ww, p, q, cum, z, w_out, norm)
        x, lb = fn(moe_block, compile_)(x, c.top, w[f"model.layers.{n}.post_attention_layernorm"], *layer_weights(w, n, MOE_NAMES))
        balance = balance + lb
    return x, balance


def train_loss(c, w, tokens, start, weight, cos, sin, compile_=False):
    """(weighted mean of -log p, balance loss, sum over answer tokens, number of answer tokens); weight [b, t] of each token as a target."""
    x, balance = hidden_states(c, w, tokens, start, cos, sin, compile_)
    targets, weight = torch.roll(tokens, -1, 1), torch.roll(weight, -1, 1) * torch.roll(~start, -1, 1)
    weight = torch.cat([weight[:, :-1], torch.zeros_like(weight[:, -1:])], 1)
    loss, total, count = fn(head_loss, compile_)(x, w["model.norm"], w["model.embed_tokens"], targets, weight)
    return loss, balance / c.layers, total, count


# ---------------------------------------------------------------- decoding: one token of many sequences

class State:
    """Recurrent states and key/value caches of b sequences that all stand at the same position."""

    def __init__(self, c, b, length, device, dtype):
        self.at = 0
        self.s, self.window, self.k, self.v = {}, {}, {}, {}
        for n in range(c.layers):
            if c.full[n]:
                self.k[n] = torch.zeros(b, c.nkv, length, c.d, device=device, dtype=dtype)
                self.v[n] = torch.zeros_like(self.k[n])
            else:
                self.s[n] = torch.zeros(b, c.hv, 128, 128, device=device)
                self.window[n] = torch.zeros(b, 3, c.cc, device=device, dtype=dtype)


def decode_step(c, w, ids, state, cos, sin):
    """Logits [b, vocab] after one more token of each sequence.  ids [b]."""
    t, x = state.at, w["model.embed_tokens"][ids]
    for n in range(c.layers):
        u = rms(x, w[f"model.layers.{n}.input_layernorm"])
        if c.full[n]:
            w_q, w_k, w_v, w_o, q_norm, k_norm = layer_weights(w, n, ATT_NAMES, "self_attn.")
            q, gate = (u @ w_q.t()).unflatten(-1, (c.nq, 2 * c.d)).split(c.d, -1)
            k, v = (u @ w_k.t()).unflatten(-1, (c.nkv, c.d)), (u @ w_v.t()).unflatten(-1, (c.nkv, c.d))
            state.k[n][:, :, t] = rotate(rms(k, k_norm), cos[t], sin[t], c.rot)
            state.v[n][:, :, t] = v
            q = rotate(rms(q, q_norm), cos[t], sin[t], c.rot).unflatten(1, (c.nkv, -1))
            scores = q.float() @ state.k[n][:, :, :t + 1].float().transpose(-1, -2) * c.d ** -0.5
            o = (torch.softmax(scores, -1) @ state.v[n][:, :, :t + 1].float()).to(x.dtype).flatten(1, 2)
            x = x + (o * torch.sigmoid(gate.float())).to(x.dtype).flatten(1) @ w_o.t()
        else:
            w_qkv, w_z, w_a, w_b, w_out, conv, a_log, dt_bias, norm = layer_weights(w, n, GDN_NAMES, "linear_attn.")
            rows = torch.cat([state.window[n], (u @ w_qkv.t()).unsqueeze(1)], 1)
            state.window[n] = rows[:, 1:]
            y = F.silu((rows.float() * conv.float().t()).sum(1)).to(x.dtype)
            rep = c.hv // c.hk
            q = (unit(y[:, :c.kd].unflatten(-1, (c.hk, 128))) * 128 ** -0.5).repeat_interleave(rep, 1)
            k = unit(y[:, c.kd:2 * c.kd].unflatten(-1, (c.hk, 128))).repeat_interleave(rep, 1)
            v = y[:, 2 * c.kd:].unflatten(-1, (c.hv, 128)).float()
            alpha = torch.exp(-torch.exp(a_log.float()) * F.softplus((u @ w_a.t()).float() + dt_bias.float()))
            beta = torch.sigmoid((u @ w_b.t()).float())
            s = state.s[n].mul_(alpha[..., None, None])
            delta = beta[..., None] * (v - (k.unsqueeze(-2) @ s).squeeze(-2))
            s.add_(k.unsqueeze(-1) * delta.unsqueeze(-2))
            o = (q.unsqueeze(-2) @ s).squeeze(-2).to(x.dtype).float()
            y = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + EPS) * norm.float() * F.silu((u @ w_z.t()).float().unflatten(-1, (-1, 128)))
            x = x + y.to(x.dtype).flatten(1) @ w_out.t()
        x, _, _ = moe(x, rms(x, w[f"model.layers.{n}.post_attention_layernorm"]), c.top, *layer_weights(w, n, MOE_NAMES))
    state.at = t + 1
    return (rms(x, w["model.norm"]) @ w.get("lm_head", w["model.embed_tokens"]).t()).float()
