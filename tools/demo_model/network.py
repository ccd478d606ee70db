"""The Llama that is trained, and its loss."""

import torch
import torch.nn.functional as F

from demo_model.batches import ANSWER


class Block(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.a = a
        self.norm1 = torch.nn.RMSNorm(a.width, eps=1e-5)
        self.norm2 = torch.nn.RMSNorm(a.width, eps=1e-5)
        self.q = linear(a.width, a.heads * a.head_dim)
        self.k = linear(a.width, a.kv_heads * a.head_dim)
        self.v = linear(a.width, a.kv_heads * a.head_dim)
        self.o = linear(a.heads * a.head_dim, a.width)
        self.gate = linear(a.width, a.ffn)
        self.up = linear(a.width, a.ffn)
        self.down = linear(a.ffn, a.width)

    def forward(self, x, cos, sin):
        a, (b, n, _) = self.a, x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, a.heads, a.head_dim).transpose(1, 2)
        k = self.k(h).view(b, n, a.kv_heads, a.head_dim).transpose(1, 2)
        v = self.v(h).view(b, n, a.kv_heads, a.head_dim).transpose(1, 2)
        turn = lambda t: (
            t * cos + torch.cat((-t[..., a.head_dim // 2 :], t[..., : a.head_dim // 2]), -1) * sin
        ).to(v.dtype)
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(a.heads // a.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(torch.nn.Module):
    """`a`: width, layers, heads, kv_heads, head_dim, ffn, rope_theta, init_std."""

    def __init__(self, a, vocab):
        super().__init__()
        self.a = a
        self.embed = torch.nn.Embedding(vocab, a.width)
        self.blocks = torch.nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = torch.nn.RMSNorm(a.width, eps=1e-5)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=a.init_std)
        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Head h of the first layer starts out attending to whatever is 1 + h % 4 tokens back.

        All embeddings share one vector (which the tied output's softmax does not see). Queries and
        keys read it into the pairs of dimensions that RoPE turns fastest, the query turned back by
        so many places.
        """
        a = self.a
        shared = torch.nn.functional.normalize(torch.randn(a.width), dim=0)
        self.embed.weight += shared * a.init_std * a.width**0.5
        pairs, half = 4, a.head_dim // 2
        freq = a.rope_theta ** (-torch.arange(0, pairs) / half)
        read = (15 * a.head_dim**0.5) ** 0.5 / (a.width / 2) ** 0.5 * shared
        for name, heads in (("q", a.heads), ("k", a.kv_heads)):
            w = getattr(self.blocks[0], name).weight.view(heads, a.head_dim, a.width)
            for h in range(heads):
                angle = -freq * (1 + h % 4) if name == "q" else torch.zeros(pairs)
                w[h, :pairs] += angle.cos()[:, None] * read
                w[h, half : half + pairs] += angle.sin()[:, None] * read

    def forward(self, ids, pos):
        a = self.a
        freq = a.rope_theta ** (
            -torch.arange(0, a.head_dim, 2, device=ids.device, dtype=torch.float32) / a.head_dim
        )
        angle = (pos.float()[..., None] * freq)[:, None]
        cos, sin = angle.cos().repeat(1, 1, 1, 2), angle.sin().repeat(1, 1, 1, 2)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)


def weighted_loss(model, ids, pos, w, autocast):
    """The loss to descend; and plain means, to look at, over text and over answers (or None)."""
    with autocast:
        h = model(ids, pos)[:, :-1]
        w = w[:, 1:]
        mask = w > 0
        logits = F.linear(h[mask], model.embed.weight)
    losses = F.cross_entropy(logits.float(), ids[:, 1:][mask], reduction="none")
    w = w[mask]
    answers = losses.detach()[w >= ANSWER]
    return (
        (losses * w).sum() / w.sum(),
        losses.detach()[w < ANSWER].mean(),
        answers.mean() if len(answers) else None,
    )
