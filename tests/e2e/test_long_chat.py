"""test_long_chat.py - a chat of three turns about a text of 16,000 tokens: turns 2 and 3 compute their own tail and little more.

The model is LG_LONG_MODEL, a file or folder of any model with a context of 17,024 tokens and more (for example what
tests/bench/synth_gguf makes); without it the bundled one, and a text of 3,000 tokens.  Then turns 2 and 3 come once more, each to a server that was just started and
has only the files (--cache-dir) of the turns before: the answers are the same too.  A turn's own tail is what its prompt has beyond the one before: the answer, which comes
back without its reasoning, and the question.  LG_LONG_ARGS: more options of the server.  LG_LONG_DIR: an empty folder that stays; a run that
was cut off goes on from its files.
"""
import os
import random
import shutil
import sys
import tempfile
import time

import server

MODEL = os.environ.get("LG_LONG_MODEL", server.MODEL)
N_TOKEN = 3000 if MODEL == server.MODEL else 16000
MORE = 64  # tokens that may be computed beside the tail
QUESTIONS = ("What is the text about?", "Who is named in it, and where?", "Sum it up in one sentence.")


def post(s, path, body):
    status, _, got = s.post(path, body, timeout=3000)
    assert status == 200, (status, got)
    return got


def long_text(s):
    """So many tokens of words, by the server's own count."""
    r = random.Random(5)
    some = ("river", "stone", "lamp", "seven", "quiet", "garden", "north", "paper", "winter", "letter", "the", "of", "and", "was")
    words = [r.choice(some) for _ in range(N_TOKEN)]
    n = post(s, "/tokenize", {"prompt": " ".join(words)})["count"]
    return " ".join(words[:len(words) * N_TOKEN // n])


def turn(s, name, messages, before):
    """One turn: its answer, the tokens of its prompt."""
    start = time.monotonic()
    got = post(s, "/v1/chat/completions", {"model": server.NAME, "messages": messages, "max_tokens": 24, "temperature": 0})
    usage = got["usage"]
    n = usage["prompt_tokens"]
    computed = n - usage["prompt_tokens_details"]["cached_tokens"]
    print("%-24s prompt %6d tokens, of them beyond the turn before %6d; computed %6d; %.1f s" %
          (name, n, n - before, computed, time.monotonic() - start), flush=True)
    return got["choices"][0]["message"], n, computed


def start(folder):
    return server.Server("--cache-dir", folder, "--parallel", "2", "--ctx", str(N_TOKEN + 1024), "--no-replay",
                         *os.environ.get("LG_LONG_ARGS", "").split(), model=MODEL)


def copy_files(s, folder, to):
    """The files of the turns so far, when all are written."""
    os.mkdir(to, 0o700)
    n = -1
    while n != s.metrics()["lignum_cache_files_written_total"]:
        n = s.metrics()["lignum_cache_files_written_total"]
        time.sleep(2)
    for name in os.listdir(folder):
        if name.endswith(".kept"):
            shutil.copy(os.path.join(folder, name), to)


def main():
    with tempfile.TemporaryDirectory() as d:
        d = os.environ.get("LG_LONG_DIR", d)
        folders = [os.path.join(d, "kept"), os.path.join(d, "copy")]
        asked, messages, before, worst = [], [], 0, 0
        with start(folders[0]) as s:
            messages = [{"role": "system", "content": long_text(s)}]
            for i, question in enumerate(QUESTIONS):
                messages.append({"role": "user", "content": question})
                answer, n, computed = turn(s, "turn %d" % (i + 1), messages, before)
                asked.append((list(messages), before, answer.get("content")))
                if i == 0:
                    copy_files(s, *folders)
                else:
                    worst = max(worst, computed - (n - before))
                before = n
                messages.append({"role": "assistant", "content": answer.get("content") or ""})
            assert s.stop() == 0
        assert before > N_TOKEN, before
        for i in (1, 2):  # the copy has turn 1 alone, and then what the server before this one has written
            with start(folders[1]) as s:
                messages, before, content = asked[i]
                answer, n, computed = turn(s, "turn %d, after a restart" % (i + 1), messages, before)
                worst = max(worst, computed - (n - before))
                assert answer.get("content") == content, (answer, content)
                assert s.stop() == 0
        print("at most %d tokens more than the tail (allowed: %d)" % (worst, MORE))
        return 0 if worst <= MORE else 1


sys.exit(main())
