"""vLLM with the plugin, as tests and benches start it: models/demo, one thread, engine core and
worker in processes of their own (vLLM's default)."""
import contextlib
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "demo"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
               "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)


def transfer_config(store, **options):
    return {"kv_connector": "KvcakeConnector", "kv_connector_module_path": "kvcake.vllm",
            "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"stores": [str(store)], **options}}


def words(count, first=0):
    """So many tokens of kvcake's pages, which no other `first` begins with."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    text = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    ids = tokenizer(text * 2, add_special_tokens=False, verbose=False)["input_ids"]
    start = 977 * first
    assert len(ids) >= start + count, "kvcake has written too little"
    return ids[start:start + count]


@contextlib.contextmanager
def engine(store=None, *, scheduler="kvcake.vllm.KvcakeScheduler", vllm=None,
           **options):
    """An LLM; without a store vLLM alone."""
    from vllm import LLM
    arguments = {"model": str(MODEL), "dtype": "bfloat16", "max_model_len": 8192,
                 "enforce_eager": True, "max_num_batched_tokens": 512, **(vllm or {})}
    if store is not None:
        arguments.update(scheduler_cls=scheduler,
                         kv_transfer_config=transfer_config(store, **options))
    llm = LLM(**arguments)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def generate(llm, prompts, *, max_tokens=4, salt=None, lora=None, **sampling):
    """Of each prompt: tokens, their log probabilities, and how many prompt tokens were cached."""
    from vllm import SamplingParams
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0, ignore_eos=True,
                            **sampling)
    extra = {"cache_salt": salt} if salt else {}
    answers = llm.generate([{"prompt_token_ids": list(prompt), **extra} for prompt in prompts],
                           params, use_tqdm=False, lora_request=lora)
    return [(list(a.outputs[0].token_ids),
             [next(iter(p.values())).logprob for p in a.outputs[0].logprobs],
             a.num_cached_tokens) for a in answers]


def score(llm, prompt, tokens):
    """The log probability of each of `tokens` after the prompt and those before it."""
    from vllm import SamplingParams
    (answer,) = llm.generate([{"prompt_token_ids": [*prompt, *tokens]}],
                             SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    return [answer.prompt_logprobs[len(prompt) + i][token].logprob
            for i, token in enumerate(tokens)]
