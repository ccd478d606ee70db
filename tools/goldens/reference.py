"""Hugging Face transformers in float32 as the reference for kvcake's losses."""
import contextlib

import torch
from transformers import AutoModelForCausalLM
from transformers.models.falcon import modeling_falcon

torch.set_num_threads(1)


@contextlib.contextmanager
def replaced(owner, name, value):
    """An attribute of something has another value meanwhile."""
    right = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, right)


class Reference:
    """A model directory, read and run by transformers."""

    def __init__(self, directory):
        # "sdpa" is what transformers runs by default. Falcon's eager attention adds ALiBi twice.
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="sdpa", experts_implementation="eager"
        ).eval()

    def logits(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids]), use_cache=False).logits[0].double()

    def losses(self, ids):
        """The loss of token i + 1 after tokens 0..i, at [i]."""
        logp = self.logits(ids).log_softmax(-1)
        return [-logp[i, token].item() for i, token in enumerate(ids[1:])]

    def decode(self, prompt, count):
        """The greedy continuation, and the smallest lead that a token of it had."""
        ids, lead = list(prompt), float("inf")
        for _ in range(count):
            top = self.logits(ids)[-1].topk(2)
            ids.append(top.indices[0].item())
            lead = min(lead, (top.values[0] - top.values[1]).item())
        return ids, lead

    # ---- what kvcake rounds ----

    @contextlib.contextmanager
    def bf16_matrices(self):
        """Rounds matrices, and not norms and biases, to bf16, as kvcake's packed weights are."""
        matrices = [weight for weight in self.model.parameters() if weight.dim() >= 2]
        exact = [weight.data for weight in matrices]
        for weight in matrices:
            weight.data = weight.data.bfloat16().float()
        try:
            yield
        finally:
            for weight, data in zip(matrices, exact, strict=True):
                weight.data = data

    @contextlib.contextmanager
    def bf16_kv(self):
        """Rounds keys (after RoPE) and values to bf16, as a KV cache does."""
        functional = torch.nn.functional
        exact = functional.scaled_dot_product_attention
        calls = 0

        def rounded(query, key, value, *args, **kwargs):
            nonlocal calls
            calls += 1
            return exact(query, key.bfloat16().float(), value.bfloat16().float(), *args, **kwargs)

        with replaced(functional, "scaled_dot_product_attention", rounded):
            yield
        assert calls > 0, "transformers went around scaled_dot_product_attention"

    @contextlib.contextmanager
    def bf16_activations(self):
        """Rounds the input of every matrix to bf16, as a path of bf16 products does."""

        functional = torch.nn.functional
        exact = functional.linear

        def rounded(activations, *args):
            return exact(activations.bfloat16().float(), *args)

        with replaced(functional, "linear", rounded):
            yield

    # ---- mistakes that must show ----

    @property
    def rotary(self):
        return self.model.base_model.rotary_emb

    @property
    def routers(self):
        """What chooses experts, layer by layer."""
        return [m for m in self.model.modules() if type(m).__name__.endswith("TopKRouter")]

    def frequencies(self, change):
        """Replaces RoPE's inverse frequencies by change(frequencies)."""
        return replaced(self.rotary, "inv_freq", change(self.rotary.inv_freq))

    def not_scaled(self):
        """Without what RoPE multiplies cosines and sines by."""
        return replaced(self.rotary, "attention_scaling", 1.0)

    @contextlib.contextmanager
    def positions(self, change):
        """Rotates by change(position) instead of the position."""

        def wrong(_, args, kwargs):
            hidden, position_ids = (*args, *kwargs.values())
            return (hidden, change(position_ids)), {}

        hook = self.rotary.register_forward_pre_hook(wrong, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def alibi(self, change):
        """Replaces ALiBi's [heads, 1, keys] by change(alibi)."""
        right = modeling_falcon.build_alibi_tensor
        return replaced(modeling_falcon, "build_alibi_tensor",
                        lambda *args, **kwargs: change(right(*args, **kwargs)))


def mean_difference(a, b):
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)
