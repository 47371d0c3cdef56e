#!/usr/bin/env python3
"""Asks a running server what its users ask, with the `openai` package, and checks fields, streams and error classes.

  check_openai.py [--url http://127.0.0.1:8080] [--key KEY] [--model NAME]

The server's model must have a tokenizer, and a chat template unless --no-chat is given. Needs Python's package openai, in
a virtual environment for instance. Prints a line a check; the exit code is 1 if one fails.
"""
import argparse
import json
import sys
import urllib.request

checks = []


def check(function):
    checks.append(function)
    return function


class Asker:
    """What the checks share."""

    def __init__(self, arguments, openai):
        self.openai = openai
        self.url = arguments.url.rstrip("/")
        self.key = arguments.key
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=arguments.key or "none", max_retries=0, timeout=120)
        self.model = arguments.model or self.client.models.list().data[0].id
        self.has_chat = not arguments.no_chat

    def complete(self, prompt="Once upon a time", **fields):
        fields = {"max_tokens": 8, "temperature": 0, **fields}
        return self.client.completions.create(model=self.model, prompt=prompt, **fields)

    def chat(self, text="Hello", **fields):
        fields = {"max_completion_tokens": 8, "temperature": 0, **fields}
        return self.client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": text}], **fields)

    def post(self, path, body):
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def tokens(self, text, **fields):
        return self.post("/tokenize", {"prompt": text, **fields})["tokens"]


def expect(condition, *found):
    if not condition:
        raise AssertionError(" ".join(str(one) for one in found) or "not as expected")


def refused(ask, kind, call, param=None, code=None):
    try:
        call()
    except kind as error:
        expect(type(error) is kind, type(error).__name__)
        expect(isinstance(error.body, dict) and error.body.get("message"), error.body)
        expect(error.body.get("param") == param, "param", error.body.get("param"))
        expect(code is None or error.code == code, "code", error.code)
        return error
    raise AssertionError(f"no {kind.__name__}")


# --- models ---

@check
def models_are_listed(ask):
    listed = ask.client.models.list().data
    expect([one.id for one in listed] == [ask.model] and listed[0].object == "model", listed)
    expect(ask.client.models.retrieve(ask.model).id == ask.model)
    refused(ask, ask.openai.NotFoundError, lambda: ask.client.models.retrieve("no-such-model"), "model", "model_not_found")


# --- completions ---

@check
def completion_has_every_field(ask):
    answer = ask.complete()
    choice = answer.choices[0]
    expect(answer.object == "text_completion" and answer.model == ask.model and answer.id and answer.created > 0, answer)
    expect(choice.index == 0 and choice.finish_reason in ("stop", "length") and choice.logprobs is None, choice)
    usage = answer.usage
    expect(usage.prompt_tokens == len(ask.tokens("Once upon a time")), usage)
    expect(0 < usage.completion_tokens <= 8 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)


@check
def ids_and_texts_are_the_same_prompt(ask):
    ids = ask.tokens("Once upon a time")
    expect(ask.complete(ids).choices[0].text == ask.complete().choices[0].text)
    both = ask.complete(["Once upon a time", "The"])
    expect([one.index for one in both.choices] == [0, 1], both)
    expect(both.choices[0].text == ask.complete().choices[0].text)
    expect(len(ask.complete([ids, ids], n=2, temperature=1, seed=1).choices) == 4)


@check
def sampling_fields_are_taken(ask):
    fields = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 7, "user": "me",
              "extra_body": {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True}}
    first, second = ask.complete(**fields), ask.complete(**fields)
    expect(first.choices[0].text == second.choices[0].text, "one seed, two texts")
    expect(first.usage.completion_tokens == 8, first.usage)
    expect(ask.complete(temperature=None, stop=None, logprobs=None, n=None).choices[0].finish_reason)


@check
def stop_texts_end_the_output(ask):
    whole = ask.complete(max_tokens=16, extra_body={"ignore_eos": True}).choices[0].text
    if len(whole) < 4:
        return
    stop = whole[len(whole) // 2:][:2]
    choice = ask.complete(max_tokens=16, stop=[stop], extra_body={"ignore_eos": True}).choices[0]
    expect(stop not in choice.text, repr(choice.text), repr(stop))


@check
def logprobs_are_of_the_tokens(ask):
    answer = ask.complete(logprobs=3, max_tokens=4, extra_body={"ignore_eos": True})
    lists = answer.choices[0].logprobs
    expect(len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == 4, lists)
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs):
        expect(3 <= len(top) <= 4 and top[token] == logprob and logprob <= 0, token, logprob, top)


@check
def echo_begins_with_null(ask):
    answer = ask.complete(logprobs=1, max_tokens=1, echo=True, extra_body={"ignore_eos": True})
    choice = answer.choices[0]
    prompt_tokens = answer.usage.prompt_tokens
    expect(choice.text.startswith("Once upon a time"), choice.text)
    expect(len(choice.logprobs.tokens) == prompt_tokens + 1, choice.logprobs)
    expect(choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None, choice.logprobs)
    expect(all(one is not None for one in choice.logprobs.token_logprobs[1:]), choice.logprobs)
    alone = ask.complete(logprobs=1, max_tokens=0, echo=True)
    expect(alone.choices[0].text == "Once upon a time" and alone.usage.completion_tokens == 0, alone)
    expect(alone.choices[0].logprobs.token_logprobs == choice.logprobs.token_logprobs[:prompt_tokens])


@check
def token_ids_come_back(ask):
    choice = ask.complete(extra_body={"return_token_ids": True, "ignore_eos": True}).choices[0]
    expect(choice.prompt_token_ids == ask.tokens("Once upon a time") and len(choice.token_ids) == 8, choice)


@check
def completion_streams(ask):
    whole = ask.complete(max_tokens=12)
    chunks = list(ask.complete(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    expect("".join(one.choices[0].text for one in chunks if one.choices) == whole.choices[0].text)
    expect(chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1])
    expect([one.choices[0].finish_reason for one in chunks if one.choices][-1] == whole.choices[0].finish_reason)
    expect(len({one.id for one in chunks}) == 1)
    each = list(ask.complete(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    expect(all(one.usage is not None for one in each), each)
    several = list(ask.complete(["Once", "The"], stream=True))
    expect({choice.index for one in several for choice in one.choices} == {0, 1})


@check
def a_stream_can_be_left(ask):
    stream = ask.complete(max_tokens=200, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    expect(ask.complete().choices)


# --- chat ---

@check
def chat_has_every_field(ask):
    if not ask.has_chat:
        return
    answer = ask.chat()
    expect(answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer)
    choice = answer.choices[0]
    expect(choice.message.role == "assistant" and isinstance(choice.message.content, str), choice)
    expect(choice.finish_reason in ("stop", "length") and answer.usage.completion_tokens <= 8, answer)
    parts = ask.client.chat.completions.create(
        model=ask.model, temperature=0, max_tokens=8,
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    expect(parts.choices[0].message.content == choice.message.content)


@check
def chat_logprobs_have_bytes(ask):
    if not ask.has_chat:
        return
    content = ask.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    for entry in content:
        expect(entry.logprob <= 0 and len(entry.top_logprobs) == 2 and isinstance(entry.bytes, list), entry)


@check
def chat_streams(ask):
    if not ask.has_chat:
        return
    whole = ask.chat()
    chunks = list(ask.chat(stream=True, stream_options={"include_usage": True}))
    expect(chunks[0].choices[0].delta.role == "assistant", chunks[0])
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    expect(text == whole.choices[0].message.content, repr(text), repr(whole.choices[0].message.content))
    expect(chunks[-1].usage == whole.usage, chunks[-1])


# --- errors ---

@check
def bad_fields_are_bad_requests(ask):
    bad = ask.openai.BadRequestError
    for fields, param in (({"temperature": 3}, "temperature"), ({"n": 1_000_000}, "n"), ({"top_p": -1}, "top_p"),
                          ({"max_tokens": -1}, "max_tokens"), ({"logit_bias": {"5": 1}}, "logit_bias"),
                          ({"suffix": "x"}, "suffix"), ({"best_of": 3}, "best_of"), ({"logprobs": 21}, "logprobs"),
                          ({"stop": [""]}, "stop"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"),
                          ({"prompt": [-1]}, "prompt"), ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids"),
                          ({"extra_body": {"tools": [{}]}}, "tools")):
        refused(ask, bad, lambda fields=fields: ask.complete(**fields), param)
    if ask.has_chat:
        refused(ask, bad, lambda: ask.chat(response_format={"type": "json_object"}), "response_format")
        refused(ask, bad, lambda: ask.chat(top_logprobs=2), "top_logprobs")
        refused(ask, bad, lambda: ask.chat(text=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content")


@check
def long_prompts_are_bad_requests(ask):
    error = refused(ask, ask.openai.BadRequestError, lambda: ask.complete(max_tokens=10**9), "prompt",
                    "context_length_exceeded")
    expect("maximum context length" in str(error), error)


@check
def unknown_things_are_not_found(ask):
    missing = ask.openai.NotFoundError
    refused(ask, missing, lambda: ask.client.completions.create(model="no-such-model", prompt="x"), "model",
            "model_not_found")
    refused(ask, missing, lambda: ask.client.embeddings.create(model=ask.model, input="x"))


@check
def a_wrong_key_is_no_authentication(ask):
    if not ask.key:
        return
    stranger = ask.openai.OpenAI(base_url=ask.url + "/v1", api_key=ask.key + "x", max_retries=0)
    refused(ask, ask.openai.AuthenticationError, stranger.models.list, None, "invalid_api_key")


@check
def texts_survive_tokens(ask):
    text = "Once upon a time"
    expect(ask.post("/detokenize", {"tokens": ask.tokens(text, add_special_tokens=False)})["prompt"].strip() == text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--model", help="without it, the first that is listed")
    parser.add_argument("--no-chat", action="store_true", help="the model has no chat template")
    arguments = parser.parse_args()
    try:
        import openai
    except ImportError:
        print("check_openai: needs Python's package openai: pip install openai, in a virtual environment", file=sys.stderr)
        return 1
    ask = Asker(arguments, openai)
    failed = 0
    for function in checks:
        try:
            function(ask)
            print(f"ok      {function.__name__}")
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} of {len(checks)} checks passed, openai {openai.__version__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
