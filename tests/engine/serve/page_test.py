#!/usr/bin/env python3
"""Sends a message on the server's page in a headless Chromium, and reads the answer and what the page shows beside it.

  page_test.py PLAY_SERVER [--screenshots DIR]

Exit code 77, which CTest shows as skipped, where there is no Chromium. It speaks Chromium's DevTools protocol over
pipes, and needs nothing but Python.
"""
import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
PATIENCE_S = 60


class Failure(Exception):
    pass


class Browser:
    """One tab of a Chromium."""

    def __init__(self, program, profile):
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()

        def connect():
            # First away from 3 and 4, which these may be.
            moved = os.dup(to_browser), os.dup(from_browser)
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
             "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--window-size=1280,860", "about:blank"],
            preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest = b""
        self.count = 0
        self.events = []
        self.session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one for one in targets if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def receive(self, end):
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Failure("Chromium says nothing")
            some = os.read(self.back, 1 << 16)
            if not some:
                raise Failure("Chromium has ended")
            self.rest += some
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        call = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            call["sessionId"] = self.session
        os.write(self.to, json.dumps(call).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            message = self.receive(end)
            if message.get("id") != self.count:
                self.events.append(message)
            elif "error" in message:
                raise Failure(f"{method}: {message['error']}")
            else:
                return message["result"]

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise Failure(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            if time.monotonic() > end:
                raise Failure(f"never true: {expression}; the page says {self.value('document.body.innerText')!r}")
            time.sleep(0.05)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def enter(self):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r" if kind == "keyDown" else "",
                      windowsVirtualKeyCode=13)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requested(self):
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]

    def complaints(self):
        found = [event["params"]["exceptionDetails"] for event in self.events
                 if event.get("method") == "Runtime.exceptionThrown"]
        found += [event["params"]["entry"] for event in self.events
                  if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"]
        return found

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def expect(condition, what):
    if not condition:
        raise Failure(what)


def check(browser, url, keep):
    browser.call("Page.navigate", url=url + "/")
    browser.wait_for("document.readyState === 'complete' && document.getElementById('state').textContent === 'ready'")
    browser.wait_for("document.activeElement.id === 'text'")

    # A chat: the engine plays the rendered prompt back.
    browser.value("document.getElementById('tokens').value = 60")
    browser.type("Tell me <b>a story</b>")
    browser.enter()
    browser.wait_for("document.querySelectorAll('.message.assistant').length === 1")
    browser.wait_for("document.getElementById('running').textContent === '1'")
    browser.wait_for("Number(document.getElementById('rate').textContent) > 0")
    browser.wait_for("document.querySelectorAll('#iterations rect').length >= 2")
    keep("running.png")
    browser.wait_for("document.querySelector('.figures') !== null")
    said = browser.value("document.querySelector('.message.user').textContent")
    answer = browser.value("document.querySelector('.message.assistant').firstChild.data")
    expect(said == "Tell me <b>a story</b>", f"the message reads {said!r}")
    expect(answer.startswith("user: Tell me <b>a story</b>\nassistant:"), f"the answer is {answer!r}")
    expect(browser.value("document.querySelectorAll('#log b').length") == 0, "an answer was read as HTML")
    expect("60 tokens" in browser.value("document.querySelector('.figures').textContent"), "no figures")

    # What was said goes along with the next message.
    browser.type("More")
    browser.enter()
    browser.wait_for("document.querySelectorAll('.figures').length === 2")
    second = browser.value("[...document.querySelectorAll('.message.assistant')].pop().firstChild.data")
    expect(second.startswith("user: Tell me"), f"the second answer is {second!r}")

    # Beside it.
    pools = browser.value("document.getElementById('pools').innerText")
    expect("HBM" in pools and "640 of 1,600 tokens" in pools and "DDR" in pools, f"the pools read {pools!r}")
    expect("gpu" in browser.value("document.getElementById('devices').innerText"), "no devices")
    work = browser.value("document.getElementById('work').textContent")
    expect("gpu decode" in work and "cpu attention" in work, f"the iteration reads {work!r}")

    # Stop, and an error.
    browser.value("document.getElementById('tokens').value = 300")
    browser.type("Long")
    browser.enter()
    browser.wait_for("document.querySelectorAll('.message.assistant').length === 3")
    browser.value("document.getElementById('stop').click()")
    browser.wait_for("document.getElementById('running').textContent === '0'")
    expect(browser.complaints() == [], f"the browser complains: {browser.complaints()}")
    browser.value("document.getElementById('tokens').value = 100000")
    browser.type("Too long")
    browser.enter()
    browser.wait_for("document.querySelector('.message.error') !== null")
    expect("maximum context length" in browser.value("document.querySelector('.message.error').textContent"), "no error")
    keep("answered.png")
    foreign = [asked for asked in browser.requested() if not asked.startswith((url + "/", "data:"))]
    expect(foreign == [], f"the page asks elsewhere: {foreign}")
    expect(any(asked.endswith("/live") for asked in browser.requested()), "no request was seen at all")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("play_server")
    parser.add_argument("--screenshots", type=Path)
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("page_test: no chromium here: the page is not tested")
        return SKIPPED
    server = subprocess.Popen([arguments.play_server, "--token-ms", "30"], stdout=subprocess.PIPE, text=True)
    browser = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        try:
            url = server.stdout.readline().strip()
            browser = Browser(program, profile)

            def keep(name):
                if arguments.screenshots:
                    arguments.screenshots.mkdir(parents=True, exist_ok=True)
                    browser.screenshot(arguments.screenshots / name)

            check(browser, url, keep)
        except Failure as failure:
            print(f"page_test: {failure}", file=sys.stderr)
            return 1
        finally:
            if browser:
                browser.close()
            server.terminate()
            server.wait()
    print("page_test: the page answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
