#!/usr/bin/env python3
"""A worker in plain Python: it is started by `WorkerProcesses`, and asked one unit after the other.

The protocol is written down in docs/worker-protocol.md. The main thread reads and answers at once, another thread works: so the worker
hears that it is to stop, and can say that it is well, also while it works. `cargo run --example warm_workers` uses it.

The work is a toy: it counts the words of a prompt. Two of them are heeded if a prompt begins with them:

    sleep 2.5 and whatever      waits for so many seconds first, or until it is told to stop
    fail for whatever reason    fails, and is not to be tried again
"""

import json
import os
import queue
import socket
import sys
import threading
import time
import traceback

# What a word costs, in billionths of a dollar.
NANOS_PER_WORD_READ = 3_000
NANOS_PER_WORD_WRITTEN = 15_000

began = time.monotonic()
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

# Held by whoever writes, so that lines do not mix, and by whoever looks at what follows.
lock = threading.RLock()
current = None  # The id of the query in hand.
told_to_stop = threading.Event()  # That query is to stop.
is_to_end = False  # The worker is to end when it has no query in hand.
queries_processed = 0

# At most one: the next query comes when the one before is over.
queries = queue.Queue()

# What a process knows that stays alive: how many turns each session has had.
turns = {}


class Failed(Exception):
    """The work failed: why, of which kind, and what is to follow."""

    def __init__(self, why, kind, then):
        super().__init__(why)
        self.kind = kind
        self.then = then


# --- The work -------------------------------------------------------------------------------------------------------------------------


def work(query, tell, open_session):
    """Does what a query asks for; gives its result."""
    prompt, options = query["prompt"], query["options"]
    # Units with a key come to the same process, one after the other; each without one is a session of its own.
    session = query.get("session") or "words-" + options.get("affinity_key", query["unit_id"])
    # The first thing that is said: the query is taken.
    open_session(session)
    turns[session] = turns.get(session, 0) + 1
    tell({"type": "user", "text": prompt})

    command, _, rest = prompt.partition(" ")
    if command == "sleep" and told_to_stop.wait(float(rest.split()[0])):
        raise Failed("told to stop", "cancelled", "retry")
    if command == "fail":
        raise Failed(rest or "no reason was given", "told_to_fail", "give_up")

    tell({"type": "thinking", "text": "I had better count them."})
    tell({"type": "tool_use", "id": "t1", "name": "count", "input": {"text": prompt}})
    words = len(prompt.split())
    tell({"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": str(words)}]})

    answer = f"{words} words"
    written = len(answer.split())
    amount = words * NANOS_PER_WORD_READ + written * NANOS_PER_WORD_WRITTEN
    tell({"type": "usage", "charge": {"model": "toy", "tokens": {"input": words, "output": written}, "amount": amount}})
    tell({"type": "text", "text": answer})
    return {"output": answer, "json": {"words": words, "pid": os.getpid(), "turn": turns[session]}}


def work_on_queries():
    """The life of the thread that works."""
    while True:
        request_id, query = queries.get()

        def tell(content):
            say("message", requestId=request_id, content=content)

        def open_session(session):
            say("session", requestId=request_id, sessionId=session)

        try:
            result = work(query, tell, open_session)
        except Failed as failure:
            end_query("error", requestId=request_id, error=str(failure), kind=failure.kind, then=failure.then)
        except Exception as error:  # A mistake of ours, which the parent should hear of.
            traceback.print_exc()
            end_query("error", requestId=request_id, error=f"{type(error).__name__}: {error}")
        else:
            end_query("complete", requestId=request_id, result=result)


# --- The protocol ---------------------------------------------------------------------------------------------------------------------


def say(message_type, **fields):
    """Says something to the parent: one line of JSON."""
    line = json.dumps({"type": message_type, **fields}) + "\n"
    with lock:
        try:
            connection.sendall(line.encode())
        except OSError:
            pass  # The parent is gone. The thread that reads finds out, and ends the process.


def end_query(message_type, **fields):
    """Says how the query in hand has ended. All at once: whoever looks finds it in hand with nothing said, or gone with all of it."""
    global current
    with lock:
        say(message_type, **fields)
        current = None
        if told_to_stop.is_set():
            say("ready")
        if is_to_end:
            end()


def begin_query(request_id, query):
    global current, queries_processed
    with lock:
        if current is not None or is_to_end:
            # No parent should do that. Without a `session` before it, this says that the query was refused.
            say("error", requestId=request_id, error="there is another query in hand, or the worker ends")
            return
        current = request_id
        queries_processed += 1
        told_to_stop.clear()
    queries.put((request_id, query))


def cancel(request_id):
    with lock:
        if current == request_id:
            told_to_stop.set()
        else:
            # It was over before this was heard, and the parent waits to hear that the worker can go on.
            say("ready")


def shut_down(is_graceful):
    global is_to_end
    with lock:
        if current is not None and is_graceful:
            is_to_end = True
        else:
            end()


def end():
    say("shutdown_ack")
    # The thread that reads is at the end then, and with it the process.
    connection.shutdown(socket.SHUT_RDWR)


def hear(message):
    """Answers the parent. Nothing here takes long."""
    message_type = message["type"]
    if message_type == "query":
        begin_query(message["requestId"], message["payload"])
    elif message_type == "cancel":
        cancel(message["requestId"])
    elif message_type == "health_check":
        say("health_ok", uptime=time.monotonic() - began, queriesProcessed=queries_processed)
    elif message_type == "shutdown":
        shut_down(message["graceful"])
    # Anything else is of a later version.


def main():
    try:
        connection.connect(os.environ["WORKCREW_SOCKET"])
    except KeyError:
        sys.exit("there is no WORKCREW_SOCKET: this is started by a program with a pool, such as the example `warm_workers`")
    # What is expensive, such as to load a model, is done here, once for all queries.
    threading.Thread(target=work_on_queries, daemon=True).start()
    say("ready")
    try:
        for line in connection.makefile("rb"):
            if line.strip():
                hear(json.loads(line))
    except ConnectionResetError:
        pass  # The parent has hung up in the middle: there is nobody left to work for.


if __name__ == "__main__":
    main()
