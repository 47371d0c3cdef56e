#!/usr/bin/env python3
"""Lets other people's clients use a server: langchain-openai, guidellm, lm-eval.

  check_clients.py PROGRAM [--model FOLDER] [--only langchain,guidellm,lm-eval] [--documents 40] [--seconds 10]

Starts `PROGRAM serve` with the model in f32 and a chat template of its own. The model's folder must have a tokenizer that
Transformers reads; without --model it is the embedded model's, models/tiny/model.

  langchain   completions, chats and streams give what plain requests give
  guidellm    a short benchmark, none of whose requests fails
  lm-eval     a task of multiple choice from a file, by its backends `local-completions` (this server) and `hf`
              (Transformers, on the same folder in f32): the same accuracy, log-likelihoods within 1e-4

Each needs its package, in a virtual environment for instance: pip install langchain-openai guidellm
"lm-eval[api,hf]". A client that is not installed is said and left out. Prints a line a client; the exit code is 1 if one fails.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

template = ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
most_difference = 1e-4


class Server:
    def __init__(self, program, model, folder, dtype="f32"):
        chat = folder / "chat.jinja"
        chat.write_text(template)
        self.process = subprocess.Popen(
            [program, "serve", "--model", str(model), "--port", "0", "--dtype", dtype, "--served-model-name", "served",
             "--chat-template", str(chat)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = self.process.stderr.readline()
        found = re.search(r"http://[0-9.]+:\d+", said)
        if not found:
            raise SystemExit(f"check_clients: no server: {said}")
        self.url = found[0]

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def expect(condition, *found):
    if not condition:
        raise AssertionError(" ".join(str(one) for one in found) or "not as expected")


def run(command, environment=None):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, env=os.environ | (environment or {}), check=False)
    expect(done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def beside_python(name):
    """A program of the same environment."""
    return pathlib.Path(sys.executable).with_name(name)


# --- langchain-openai ---


def check_langchain(server, _arguments, _folder):
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI, OpenAI
    common = {"base_url": server.url + "/v1", "api_key": "none", "model": "served", "temperature": 0, "max_retries": 0}
    prompt = "Once upon a time"
    expected = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 20, "temperature": 0})["choices"][0]["text"]
    completing = OpenAI(max_tokens=20, **common)
    expect(completing.invoke(prompt) == expected, "invoke")
    expect("".join(completing.stream(prompt)) == expected, "stream")
    expect([one[0].text for one in completing.generate([prompt, prompt]).generations] == [expected] * 2, "generate")

    talk = [("system", "You tell stories."), ("user", "Hello"), ("assistant", "Hi"), ("user", "And then?")]
    answer = server.post("/v1/chat/completions", {
        "messages": [{"role": role, "content": text} for role, text in talk], "max_tokens": 20, "temperature": 0})
    expected = answer["choices"][0]["message"]["content"]
    kinds = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
    messages = [kinds[role](text) for role, text in talk]
    chatting = ChatOpenAI(max_tokens=20, stream_usage=True, **common)
    whole = chatting.invoke(messages)
    expect(whole.content == expected, "chat", whole.content)
    expect(whole.usage_metadata["output_tokens"] == answer["usage"]["completion_tokens"], whole.usage_metadata)
    pieces = list(chatting.stream(messages))
    expect("".join(piece.content for piece in pieces) == expected, "chat stream")
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    expect(usage and usage[-1]["output_tokens"] == answer["usage"]["completion_tokens"], usage)
    likely = ChatOpenAI(max_tokens=4, **common).bind(logprobs=True, top_logprobs=2).invoke(messages)
    expect(len(likely.response_metadata["logprobs"]["content"]) == 4, likely.response_metadata)
    return "completions, chats, streams, usage and logprobs as plain requests give them"


# --- guidellm ---


def check_guidellm(server, arguments, folder):
    report = folder / "guidellm.json"
    backend = {"kind": "openai_http", "target": server.url, "model": "served", "request_format": "/v1/completions"}
    run([beside_python("guidellm"), "run", "--backend", json.dumps(backend),
         "--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_duration,seconds={arguments.seconds}",
         "--tokenizer", f"kind=huggingface_auto,model={arguments.model}",
         "--data", "kind=synthetic_text,prompt_tokens=48,output_tokens=32", "--output", f"kind=json,path={report}",
         "--disable-console"], {"HF_HUB_OFFLINE": "1"})
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    made = benchmark["metrics"]["request_totals"] if "request_totals" in benchmark["metrics"] else benchmark["run_stats"]
    expect(made["errored"] == 0, made)
    expect(made["successful"] > 0, made)
    rate = benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"]
    return f"{made['successful']} requests, none failed; {rate:.0f} output tokens/s"


# --- lm-eval ---


def write_task(folder, model, count):
    """Sentences in two halves: which of four second halves belongs to the first?"""
    chance = random.Random(1)
    heldout = pathlib.Path(model).parent / "heldout.jsonl"
    texts = ([json.loads(line) for line in heldout.read_text().splitlines()] if heldout.exists() else [])
    texts = [one if isinstance(one, str) else next(iter(one.values())) for one in texts]
    words = "the dog saw a little cat in garden and it was very happy because sun hot day".split()
    while len(texts) < count:
        texts.append(" ".join(chance.choice(words) for _ in range(24)))
    halves = []
    for text in texts[:count]:
        words = text.split()[8:16]  # short: most models take some for others
        halves.append((" ".join(words[:len(words) // 2]), " " + " ".join(words[len(words) // 2:])))
    with open(folder / "documents.jsonl", "w", encoding="utf-8") as file:
        for number, (first, second) in enumerate(halves):
            others = [halves[(number + step) % count][1] for step in (1, 2, 3)]
            gold = chance.randrange(4)
            choices = others[:gold] + [second] + others[gold:]
            print(json.dumps({"text": first, "choices": choices, "gold": gold}), file=file)
    (folder / "halves.yaml").write_text(f"""task: sluice_halves
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder / "documents.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
""")


def evaluate(folder, name, backend, settings):
    out = folder / name
    run([sys.executable, "-m", "lm_eval", "--model", backend, "--model_args", settings, "--tasks", "sluice_halves",
         "--include_path", folder, "--log_samples", "--output_path", out, "--device", "cpu", "--batch_size", "1"],
        {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": "", "OPENAI_API_KEY": "none"})
    samples = [json.loads(line) for line in next(out.rglob("samples_*.jsonl")).read_text().splitlines()]
    samples.sort(key=lambda sample: sample["doc_id"])
    results = json.loads(next(out.rglob("results_*.json")).read_text())
    likelihoods = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
    greedy = [str(answer[0][1]) for sample in samples for answer in sample["resps"]]
    return results["results"]["sluice_halves"]["acc,none"], likelihoods, greedy


def check_lm_eval(server, arguments, folder):
    write_task(folder, arguments.model, arguments.documents)
    served = evaluate(folder, "served", "local-completions",
                      f"model=served,base_url={server.url}/v1/completions,tokenizer_backend=huggingface,"
                      f"tokenizer={arguments.model},num_concurrent=4,tokenized_requests=True,add_bos_token=True")
    own = evaluate(folder, "hf", "hf", f"pretrained={arguments.model},dtype=float32")
    expect(len(served[1]) == len(own[1]) == 4 * arguments.documents, len(served[1]), len(own[1]))
    difference = max(abs(a - b) for a, b in zip(served[1], own[1]))
    expect(difference <= most_difference, f"log-likelihoods differ by {difference:.2g}")
    expect(served[0] == own[0], f"accuracies {served[0]} and {own[0]}")
    expect(served[2] == own[2], "which of them are greedy")
    return (f"{len(own[1])} log-likelihoods from {min(own[1]):.1f} to {max(own[1]):.1f} differ by {difference:.1g} at most; "
            f"accuracy {served[0]:.3f} by both")


checks = {"langchain": ("langchain_openai", check_langchain), "guidellm": ("guidellm", check_guidellm),
          "lm-eval": ("lm_eval", check_lm_eval)}


def main():
    own_model = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny" / "model"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="sluice")
    parser.add_argument("--model", default=str(own_model), help="a folder")
    parser.add_argument("--only", default=",".join(checks), help="clients, with commas between them")
    parser.add_argument("--documents", type=int, default=40, help="of lm-eval's task")
    parser.add_argument("--seconds", type=int, default=10, help="of guidellm's benchmark")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = Server(arguments.program, arguments.model, folder)
        for client in arguments.only.split(","):
            module, check = checks[client]
            if importlib.util.find_spec(module) is None:
                print(f"absent  {client}: pip install it")
                continue
            try:
                print(f"ok      {client}: {check(server, arguments, folder)}", flush=True)
            except Exception as error:  # pylint: disable=broad-except
                failed += 1
                print(f"FAILED  {client}: {type(error).__name__}: {error}", flush=True)
        if server.stop() != 0:
            failed += 1
            print("FAILED  the server's end")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
