"""Clients of the chaos run: what they ask, how they behave, and what they hold to be wrong."""
import dataclasses
import http.client
import json
import re
import socket
import struct
import threading
import time

from server_fixture import WAIT_S, Server

WORDS = ("river stone seven lamp paper orchard winter copper quiet engine harbour violet market "
         "north bridge candle letter thunder garden silver").split()
ENDINGS = ("", "\nQuestion: what is said of the river?\nAnswer:", "\n\nIn short:", " And so",
           "\nQuestion: how many lamps are there?\nAnswer: There are")
CONNECTION_ERRORS = (ConnectionError, http.client.HTTPException)


class Wrong(Exception):
    """What no client may ever see."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """What determines an answer."""

    path: str
    fields: str  # JSON

    def body(self, **more):
        return {**json.loads(self.fields), **more}


@dataclasses.dataclass
class Answer:
    text: str = ""
    tokens: list = dataclasses.field(default_factory=list)  # (text, logprob, top), where asked for
    finish: str = None
    completion_tokens: int = None

    def add(self, choice, chat):
        """A choice of a whole answer, or of one event."""
        if chat:
            message = choice.get("message") or choice.get("delta")
            self.text += message.get("content") or ""
            content = (choice.get("logprobs") or {}).get("content") or []
            self.tokens += [(entry["token"], entry["logprob"], entry["top_logprobs"])
                            for entry in content]
        else:
            self.text += choice["text"]
            logprobs = choice.get("logprobs")
            if logprobs:
                self.tokens += zip(logprobs["tokens"], logprobs["token_logprobs"],
                                   logprobs["top_logprobs"])
        self.finish = choice["finish_reason"] or self.finish

    def begins(self, whole):
        return (whole.text.startswith(self.text) and
                whole.tokens[:len(self.tokens)] == self.tokens)


def make_asks(rng, count, slow=False):
    """Asks whose prompts share long beginnings; shorter ones for a slow server."""
    lines = [15, 60, 120] if slow else [15, 60, 120, 200]
    answers = [1, 6, 24, 100] if slow else [1, 6, 24, 100, 300, 600]
    documents = [" ".join(f"Line {i}: {' '.join(rng.choices(WORDS, k=6))}."
                          for i in range(rng.choice(lines))) for _ in range(6)]
    asks = []
    for _ in range(count):
        document = rng.choice(documents)
        document = document[:rng.choice([len(document), len(document) // 2, 700])]
        fields = {"max_tokens": rng.choice(answers), "ignore_eos": rng.random() < 0.7}
        if rng.random() < 0.3:
            fields.update(temperature=0.9, seed=rng.randrange(4), top_p=0.9)
        else:
            fields["temperature"] = 0
        if rng.random() < 0.3:
            fields["stop"] = rng.sample(["the", ". ", "1", "\n", "never to be seen"], 2)
        chat = rng.random() < 0.3
        if rng.random() < 0.3:
            fields.update({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2})
        if chat:
            fields["messages"] = [{"role": "system", "content": document},
                                  {"role": "user", "content": rng.choice(ENDINGS) or "Well?"}]
        else:
            fields["prompt"] = document + rng.choice(ENDINGS)
        asks.append(Ask("/v1/chat/completions" if chat else "/v1/completions",
                        json.dumps(fields)))
    return asks


class Reference:
    """What a server answers that has no faults, one request at a time, everything computed."""

    def __init__(self):
        self.server = Server()
        self._lock = threading.Lock()
        self._answers = {}  # of each ask

    def answer(self, ask):
        with self._lock:
            if ask not in self._answers:
                got = self.server.post(ask.path, ask.body(
                    cache_salt=str(len(self._answers)), kvcake={"store": False, "policy": "compute"}))
                answer = Answer(completion_tokens=got["usage"]["completion_tokens"])
                answer.add(got["choices"][0], "chat" in ask.path)
                self._answers[ask] = answer
            return self._answers[ask]

    def check(self, ask, answer, whole=True):
        expected = self.answer(ask)
        if not (answer == expected if whole else answer.begins(expected)):
            raise Wrong(f"{ask.path} {ask.fields}\nanswered {answer}\nis {expected}")


# What docs/serving.md says of a store that hangs.
HELD = re.compile(r"\d+ pages of KV cache are held by reads and writes that a store has not ended "
                  r"in time, and the request's \d+ tokens need \d+ of the \d+ that are left: see "
                  r"the health of the store")
ENDS = re.compile(r"the server is shutting down|the server gave the request up")


def check_error(status, body, life, *allowed):
    """An error in OpenAI's shape that this life may answer with, or of one of those statuses."""
    error = json.loads(body)["error"]
    message = error["message"]
    if status == 503:
        held = life.hangs and HELD.fullmatch(message)
        life.given_up += bool(held)
        fine = held or life.ending is not None and ENDS.fullmatch(message)
    else:
        fine = message and status in (429, *allowed)
    if not fine:
        raise Wrong(f"status {status}: {error}")


class Client:
    """One client: behaves in a random way each time. Raises Wrong, or CONNECTION_ERRORS."""

    def __init__(self, rng, asks, reference, counts):
        self._rng = rng
        self._asks = asks
        self._reference = reference
        self._counts = counts

    def act(self, life):
        """One request to `life.server`, and all of its answer that this client wants."""
        deed, = self._rng.choices(
            [self.whole, self.stream, self.cancel_stream, self.slow, self.leave, self.bad,
             self.junk, self.look, self.warm],
            [6, 6, 3, 1, 1, 2, 1, 1, 1])
        deed(life)
        self._counts[deed.__name__] = self._counts.get(deed.__name__, 0) + 1

    def _ask(self):
        # Some much more often than others.
        ask = self._asks[int(len(self._asks) * self._rng.random() ** 2)]
        more = {}
        if self._rng.random() < 0.5:
            more["kvcake"] = {"policy": self._rng.choice(["cake", "compute", "load", "load"]),
                              "report": self._rng.random() < 0.5,
                              "store": self._rng.random() < 0.9}
        if self._rng.random() < 0.1:
            more["cache_salt"] = self._rng.choice("ab")
        return ask, more

    def _send(self, life, path, body, receive_buffer=None):
        connection = http.client.HTTPConnection(life.server.host, life.server.port, timeout=WAIT_S)
        connection.connect()
        if receive_buffer:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.request("POST", path, json.dumps(body),
                           {"Content-Type": "application/json"})
        return connection

    def whole(self, life):
        ask, more = self._ask()
        connection = self._send(life, ask.path, ask.body(**more))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 200:
            return check_error(response.status, content, life)
        body = json.loads(content)
        usage = body["usage"]
        answer = Answer(completion_tokens=usage["completion_tokens"])
        answer.add(body["choices"][0], "chat" in ask.path)
        self._reference.check(ask, answer)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        if not 0 <= cached < usage["prompt_tokens"]:
            raise Wrong(f"{cached} cached tokens: {usage}")

    def stream(self, life, events_max=None, pause_s=0, receive_buffer=None):
        """The whole stream, or `events_max` of its events."""
        ask, more = self._ask()
        body = ask.body(stream=True, stream_options={"include_usage": True}, **more)
        connection = self._send(life, ask.path, body, receive_buffer)
        response = connection.getresponse()
        if response.status != 200:
            content = response.read()
            connection.close()
            return check_error(response.status, content, life)
        answer = Answer()
        events = 0
        while events_max is None or events < events_max:
            try:
                line = response.readline()
            except CONNECTION_ERRORS:
                line = b""
            if not line:
                connection.close()
                self._reference.check(ask, answer, whole=False)
                if life.finishes:
                    raise Wrong(f"a stream broke off: {ask}")
                raise ConnectionResetError
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                connection.close()
                return self._reference.check(ask, answer)
            event = json.loads(line[6:])
            if "error" in event:
                connection.close()
                self._reference.check(ask, answer, whole=False)
                return check_error(503, line[6:], life)
            events += 1
            if event.get("usage"):
                answer.completion_tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                answer.add(choice, "chat" in ask.path)
            time.sleep(pause_s)
        self._hang_up(connection)
        response.close()
        self._reference.check(ask, answer, whole=False)

    def _hang_up(self, connection):
        reset = self._rng.random() < 0.5
        if reset and connection.sock:  # which a server that stops has us close ourselves
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def cancel_stream(self, life):
        self.stream(life, events_max=self._rng.choice([0, 1, 3, 20]))

    def slow(self, life):
        self.stream(life, pause_s=0.05, events_max=60, receive_buffer=2048)

    def leave(self, life):
        """Before anything has come."""
        ask, more = self._ask()
        connection = self._send(life, ask.path, ask.body(**more))
        time.sleep(self._rng.choice([0, 0.01, 0.2]))
        self._hang_up(connection)

    def bad(self, life):
        path, body = self._rng.choice([
            ("/v1/completions", {"prompt": "x", "n": 0}),
            ("/v1/completions", {"prompt": [4096 + 7]}),
            ("/v1/completions", {"prompt": [5] * 8448, "stream": True}),
            ("/v1/completions", {"prompt": "x", "temperature": -1, "stream": True}),
            ("/v1/completions", {"prompt": "x", "kvcake": {"policy": "hope"}}),
            ("/v1/completions", {"prompt": "x", "model": "another"}),
            ("/v1/chat/completions", {"messages": []}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                      "tools": [{"type": "function"}]}),
            ("/v1/nothing", {}),
            ("/tokenize", {"prompt": 5}),
        ])
        connection = self._send(life, path, body)
        response = connection.getresponse()
        check_error(response.status, response.read(), life, 400, 404)
        connection.close()

    def junk(self, life):
        data = self._rng.choice([
            self._rng.randbytes(300), b"GET", b"POST /v1/completions HTTP/1.1\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"pro",
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
        with socket.create_connection((life.server.host, life.server.port), WAIT_S) as connection:
            connection.sendall(data)
            if self._rng.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

    def look(self, life):
        text = life.server.request("GET", "/metrics")[2]
        if b"kvcake_pages" not in text:
            raise Wrong(text)
        if self._rng.random() < 0.5:
            life.server.post("/cache/reset", {})

    def warm(self, life):
        ask, more = self._ask()
        status, _, content = life.server.request("POST", "/cache/warm",
                                                 json.dumps(ask.body(**more)))
        if status != 200:
            check_error(status, content, life)
