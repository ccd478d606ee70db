"""vLLM with the plugin, as tests and benches start it: models/demo, one thread, engine core and
worker in processes of their own (vLLM's default)."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "demo"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
               "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
               "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
if "VLLM_RPC_BASE_PATH" not in os.environ:  # its processes inherit it
    SOCKETS = tempfile.TemporaryDirectory(prefix="vllm-")  # vLLM removes none of its sockets
    os.environ["VLLM_RPC_BASE_PATH"] = SOCKETS.name


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


class Server:
    """vLLM's server in a process group of its own, behind a socket that nobody else has; without a
    store vLLM alone."""

    def __init__(self, folder, store=None, *, model=MODEL, arguments=(), port=None, **options):
        self._socket, self._port = folder / f"{time.time_ns()}.sock", port
        where = ["--host", "127.0.0.1", "--port", str(port)] if port else ["--uds",
                                                                           str(self._socket)]
        given = [*where, "--model", str(model), "--served-model-name", "model", "--dtype",
                 "bfloat16", "--max-model-len", "8192", "--enforce-eager",
                 "--enable-prompt-tokens-details", "--max-num-batched-tokens", "512", *arguments]
        if store is not None:
            given += ["--scheduler-cls", "kvcake.vllm.KvcakeScheduler", "--kv-transfer-config",
                      json.dumps(transfer_config(store, **options))]
        self._log = []
        # The `vllm` command asks for the metadata of a package that vllm-cpu is not.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *given],
            stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for line in self._process.stdout:
            self._log.append(line)
            if "Application startup complete" in line:
                break  # a moment before it listens
        else:
            raise OSError("vLLM has not started:\n" + "".join(self._log[-50:]))
        threading.Thread(target=lambda: self._log.extend(self._process.stdout),
                         daemon=True).start()
        while self._process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError):
                self.ask("GET", "/health")
                return
            time.sleep(0.01)
        raise OSError("vLLM has ended:\n" + "".join(self._log[-50:]))

    def ask(self, method, path, body=None):
        """The body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        if self._port is None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(self._socket))
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read().decode()
        if answer.status != 200:
            raise OSError(f"{method} {path}: {answer.status} {said[:500]}")
        return said

    def complete(self, prompt, **fields):
        return json.loads(self.ask("POST", "/v1/completions", {
            "model": "model", "prompt": list(prompt), "max_tokens": 4, "temperature": 0,
            "ignore_eos": True, **fields}))

    def metrics(self, prefix="vllm:kvcake_"):
        """What /metrics has of that, by names without labels."""
        read = {}
        for line in self.ask("GET", "/metrics").splitlines():
            if line.startswith(prefix):
                name, value = line.rsplit(" ", 1)
                label = re.search('le="[^"]*"', name)
                read[name.split("{")[0] + (label[0] if label else "")] = float(value)
        return read

    def stop(self, how=signal.SIGTERM):
        """SIGKILL: with all its processes, as a machine that loses power."""
        if how == signal.SIGKILL:
            os.killpg(self._process.pid, how)
        else:
            self._process.send_signal(how)
        self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
