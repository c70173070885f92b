#!/usr/bin/env python3
"""Stands in for the providers: just enough of Anthropic's and OpenAI's servers for the real agent programs to talk to.

usage: fake_models.py LOG

Prints the port it listens on, at 127.0.0.1. What it answers stands in the prompt, after the word PLAY, as JSON:

    PLAY {"run": "a name of its own", "steps": [{"use": [["Bash", {"command": "ls"}]]}, {"fail": 429}, {"say": "done"}]}

Each request of a run gets the next step, and the last one again once all were played:

    {"say": TEXT}                      the model answers
    {"use": [[TOOL, INPUT], ...]}      the model uses tools, all at once
    {"fail": STATUS, "error": TYPE, "message": TEXT, "retry_after": SECONDS}      all but the status may be left out

Without the word it answers with a text of its own. Every answer costs 1,000 tokens of input and 100 of output, and every request
is a line in LOG, written before it is answered: {"run", "model", "status", "input", "output"}.
"""

import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORD = "PLAY "
INPUT_TOKENS = 1000
OUTPUT_TOKENS = 100


class Play:
    """How far each run has come, and what was billed."""

    def __init__(self, log_path):
        self.lock = threading.Lock()
        self.played = {}
        self.log = open(log_path, "a", buffering=1)

    def next_step(self, texts, model):
        script = next(filter(None, map(script_in, reversed(texts))), None)
        with self.lock:
            if script is None:
                run, step = None, {"say": "An answer of the model that is none."}
            else:
                run, steps = script["run"], script["steps"]
                number = self.played.get(run, 0)
                self.played[run] = number + 1
                step = steps[min(number, len(steps) - 1)]
            status = step.get("fail", 200)
            used = (INPUT_TOKENS, OUTPUT_TOKENS) if status == 200 else (0, 0)
            line = {"run": run, "model": model, "status": status, "input": used[0], "output": used[1]}
            self.log.write(json.dumps(line) + "\n")
        return step


def script_in(text):
    _, word, rest = text.partition(WORD)
    try:
        return json.JSONDecoder().raw_decode(rest)[0] if word else None
    except ValueError:
        return None


def texts_of(messages):
    """What the user has said, in order; not what tools have answered."""
    for message in messages:
        if message.get("role") == "user":
            content = message.get("content")
            parts = [{"text": content}] if isinstance(content, str) else content or []
            yield from (part["text"] for part in parts if isinstance(part.get("text"), str))


def fresh(prefix):
    return prefix + "_" + uuid.uuid4().hex


class Handler(BaseHTTPRequestHandler):
    # Version 1.0 of HTTP: an answer ends with its connection, so a stream needs no framing.

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.answer_json(200, {"object": "list", "data": [], "models": []})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        path = self.path.split("?")[0]
        talk = {"/v1/messages": self.anthropic, "/v1/responses": self.openai}.get(path)
        try:
            if talk:
                talk(body)
            else:
                self.answer_json(404, {"error": {"type": "not_found_error", "message": "there is no " + path}})
        except (BrokenPipeError, ConnectionResetError):
            pass  # Whoever asked was ended.

    def anthropic(self, body):
        step = self.server.play.next_step(list(texts_of(body["messages"])), body["model"])
        if "fail" in step:
            error = {"type": step.get("error", "api_error"), "message": step.get("message", "made up")}
            return self.fail(step, {"type": "error", "error": error})
        blocks = [{"type": "text", "text": step["say"]}] if "say" in step else [
            {"type": "tool_use", "id": fresh("toolu"), "name": name, "input": given} for name, given in step["use"]
        ]
        stop = {"stop_reason": "end_turn" if "say" in step else "tool_use", "stop_sequence": None}
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
        message = {"id": fresh("msg"), "type": "message", "role": "assistant", "model": body["model"]}
        if not body.get("stream"):
            return self.answer_json(200, message | {"content": blocks, "usage": usage} | stop)
        self.begin_stream()
        start = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 1}}
        self.event("message_start", message=message | start)
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            self.event("content_block_start", index=index, content_block=block | empty)
            self.event("content_block_delta", index=index, delta=delta)
            self.event("content_block_stop", index=index)
        self.event("message_delta", delta=stop, usage={"output_tokens": OUTPUT_TOKENS})
        self.event("message_stop")

    def openai(self, body):
        step = self.server.play.next_step(list(texts_of(body["input"])), body["model"])
        if "fail" in step:
            error = {"type": step.get("error", "server_error"), "message": step.get("message", "made up")}
            return self.fail(step, {"error": error | {"code": step.get("error"), "param": None}})
        if "say" in step:
            content = [{"type": "output_text", "text": step["say"], "annotations": []}]
            items = [{"type": "message", "id": fresh("msg"), "role": "assistant", "content": content}]
        else:
            items = [
                {"type": "function_call", "id": fresh("fc"), "call_id": fresh("call"), "name": name, "arguments": json.dumps(given)}
                for name, given in step["use"]
            ]
        response = {"id": fresh("resp"), "object": "response", "model": body["model"], "output": []}
        self.begin_stream()
        self.event("response.created", response=response | {"status": "in_progress"})
        for index, item in enumerate(items):
            self.event("response.output_item.done", output_index=index, item=item | {"status": "completed"})
        usage = {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        self.event("response.completed", response=response | {"status": "completed", "output": items, "usage": usage})

    def fail(self, step, error):
        headers = {"retry-after": str(step["retry_after"])} if "retry_after" in step else {}
        self.answer_json(step["fail"], error, headers)

    def answer_json(self, status, value, headers=None):
        content = json.dumps(value).encode()
        self.send_response(status)
        for name, header in {"content-type": "application/json", "content-length": len(content), **(headers or {})}.items():
            self.send_header(name, str(header))
        self.end_headers()
        self.wfile.write(content)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def event(self, kind, **fields):
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # All agents of a pool may come at the same moment.
    request_queue_size = 128


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        server.play = Play(sys.argv[1])
        print(server.server_address[1], flush=True)
        server.serve_forever()
