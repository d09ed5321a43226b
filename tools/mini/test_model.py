# SPDX-License-Identifier: Apache-2.0
"""Checks of the training code against itself (chunks against the recurrence, written file against memory) and, where the reference
checkpoints are at hand (ORACLE=DIR), against their logits.  Needs torch; skipped without it."""
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import checkpoint  # noqa: E402
import model as mm  # noqa: E402
import quant  # noqa: E402


def small():
    c = mm.Config(dict(num_hidden_layers=4, vocab_size=300, num_experts=8))
    w = {n: t * (4 if n.endswith("embed_tokens") else 1) for n, t in mm.init(c, 1).items()}
    return c, w


def test_chunks_equal_recurrence_with_documents():
    c, w = small()
    w = {n: t.float() for n, t in w.items()}
    cos, sin = mm.rope_table(c, 192, "cpu")
    gen = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 300, (2, 192), generator=gen)
    start = torch.zeros(2, 192, dtype=torch.bool)
    cuts = [0, 5, 6, 70, 128, 150]
    start[0, cuts] = True
    start[1, 0] = True
    x, _ = mm.hidden_states(c, w, tokens, start, cos, sin)
    logits = mm.rms(x, w["model.norm"]) @ w["model.embed_tokens"].t()
    for row, bounds in ((0, cuts + [192]), (1, [0, 192])):
        for a, b in zip(bounds, bounds[1:]):
            state = mm.State(c, 1, 192, "cpu", torch.float32)
            got = torch.stack([mm.decode_step(c, w, tokens[row, t:t + 1], state, cos, sin)[0] for t in range(a, b)])
            assert (got - logits[row, a:b]).abs().max() < 2e-4 * logits.std(), (row, a, b)


def test_gradient_of_scan_and_inverse():
    torch.manual_seed(0)
    a = torch.randn(3, 5, 5, dtype=torch.float64).tril(-1).requires_grad_()
    assert torch.autograd.gradcheck(mm.Invert.apply, (a,), fast_mode=True)
    m, n = torch.randn(4, 2, 3, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mm.Scan.apply, (m, n), fast_mode=True)


def test_written_file_reads_back(tmp_path):
    c, w = small()
    special = {t: 290 + i for i, t in enumerate(["<|endoftext|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"])}
    checkpoint.save(tmp_path, c, w, special)
    c2, back = checkpoint.load(tmp_path, torch.bfloat16)
    want = mm.effective(c, w, True)
    assert c2.vocab == 300 and set(back) == set(want)
    for n in want:
        assert torch.equal(back[n], want[n]), n
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(raw[:8], "little")) % 2 == 1


def test_quantisation_of_known_values():
    q, s, b = quant.affine(torch.full((1, 64), 3.25), 4)
    assert q.abs().max() == 0 and b.item() == 3.25 and abs(s.item() + 1.0011717677e-7) < 1e-15
    q, s, b = quant.affine(torch.arange(64)[None] * 0.5 - 16, 4)
    assert s.item() == 2.0 and b.item() == -16.0


@pytest.mark.skipif("ORACLE" not in os.environ, reason="ORACLE names no folder of reference checkpoints")
@pytest.mark.parametrize("name", ["tiny-a", "tiny-b"])
def test_reference_logits(name):
    folder = Path(os.environ["ORACLE"]) / name
    c, w = checkpoint.load(folder, torch.float32)
    ref = {}
    for n, t in checkpoint.read_safetensors(folder / "reference" / "logits.safetensors"):
        ref[n] = t
    for m in (1, 5, 65):
        ids, want = ref[f"prompt.{m}"].long(), ref[f"logits.{m}"]
        cos, sin = mm.rope_table(c, 128, "cpu")
        state = mm.State(c, 1, 128, "cpu", torch.float32)
        got = torch.stack([mm.decode_step(c, w, i[None], state, cos, sin)[0] for i in ids])
        assert (got - want).abs().max() < 2e-4, m
        if m == 65:
            tokens = torch.nn.functional.pad(ids, (0, 63))[None]
            start = torch.zeros(1, 128, dtype=torch.bool)
            start[0, 0] = True
            x, _ = mm.hidden_states(c, w, tokens, start, cos, sin)
            got = (mm.rms(x, w["model.norm"]) @ w.get("lm_head", w["model.embed_tokens"]).t())[0, :65]
            assert (got - want).abs().max() < 4e-4
