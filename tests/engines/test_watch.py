"""The page of a run while it goes on: whom it answers, and what a browser sees."""

import contextlib
import http.client
import json
import threading
import time
import urllib.parse

import numpy as np
import pytest

import fedsgm as fs
from fedsgm.base.structs import replaced
from fedsgm.engines import recording
from fedsgm.engines.callbacks import Listeners
from fedsgm.engines.watch import Watch
from support.browser import browser
from support.federated import ALGORITHM, CLIENTS, PARAMS, PROBLEM


def ask(watch, path, host=None, method="GET"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", watch.port, timeout=10)) as connection:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{watch.port}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def place(watch):
    return urllib.parse.urlsplit(watch.address).path


def simulate(callbacks):
    return fs.simulate(ALGORITHM, PROBLEM, CLIENTS, PARAMS, rounds=40, seeds=2, progress=False, callbacks=callbacks)


def test_it_answers_whom_it_was_told_to(monkeypatch):
    monkeypatch.setattr("fedsgm.engines.watch._LAST", 0.0)
    with Watch() as watch:
        assert ask(watch, place(watch))[0] == 200
        assert ask(watch, place(watch), host=f"localhost:{watch.port}")[0] == 200
        assert ask(watch, place(watch), host="evil.example")[0] == 403, "a name that was bound to this address"
        assert ask(watch, "/")[0] == 403
        assert ask(watch, "/" + "x" * 22 + "/state")[0] == 403
        assert ask(watch, place(watch) + "../../etc/passwd")[0] == 404
        assert ask(watch, place(watch) + "state", method="POST")[0] == 501
    with pytest.raises(OSError, match="refused"):
        ask(watch, "/")


def test_it_tells_of_the_run_as_it_goes_on(monkeypatch):
    monkeypatch.setattr("fedsgm.engines.watch._LAST", 0.0)
    seen = []

    def look(news):
        status, content = ask(watch, place(watch) + "state?seen=-1")
        seen.append((news, json.loads(content)["runs"][0]))
        assert status == 200

    with Watch() as watch:
        result = simulate([watch.run("np"), look])
        version = json.loads(ask(watch, place(watch) + "state")[1])["version"]
        assert ask(watch, place(watch) + f"state?seen={version}") == (204, b""), "nothing new"
    for news, shown in seen[:-1]:
        assert (shown["state"], shown["done"], shown["rounds"]) == ("running", news.done, 40)
        assert shown["charts"][0]["line"]["x"][-1] == news.done
    assert seen[-1][1]["headline"] == result.verdict().splitlines()[0]


def test_a_page_that_takes_long_to_make_is_left_as_it_is_for_a_while(monkeypatch):
    """Until a client is in trouble, which is told at once."""
    monkeypatch.setattr("fedsgm.engines.watch._LAST", 0.0)
    monkeypatch.setattr("fedsgm.engines.watch._REST", 1e9)
    account = {"name": "site-1", "answered": 1, "left_out": {}, "seconds": 0.0, "frames_up": 0, "frames_down": 0}
    course = {name: np.zeros((1, 1)) for name in ("objective", "c", "weight", "bytes_up", "bytes_down")}
    with Watch() as watch:
        sizes = {"clients": 1, "parameters": 31, "seeds": [0], "evaluate_every": 1}
        settings = recording.settings_of(replaced(ALGORITHM, participants=None), PROBLEM, **sizes)
        told = Listeners([watch.run("np")], settings, {"c": (-np.inf, 0.0)}, 9)

        def asked():
            status, content = ask(watch, place(watch) + f"state?seen={seen}")
            return (status, json.loads(content)) if content else (status, None)

        seen = -1
        told.tell(course, [account])
        status, content = asked()
        assert (status, content["runs"][0]["done"]) == (200, 1)
        seen = content["version"]
        told.tell(course, [account | {"answered": 2}])
        assert asked() == (204, None)
        for trouble in ({"left_out": {"no answer": 1}}, {"left_out": {"no answer": 1}, "gone": "lost"}):
            told.tell(course, [account | trouble])
            status, content = asked()
            assert status == 200
            assert content["runs"][0]["clients"]["rows"][0].items() >= trouble.items()
            seen = content["version"]


def test_a_browser_follows_the_run():
    with browser() as chromium, Watch() as watch:
        go_on = threading.Event()

        def slowly(news):
            if news.result is None:
                go_on.wait(30)

        run = threading.Thread(target=simulate, args=([watch.run("np"), slowly],))
        chromium.see(watch.address)
        run.start()
        for expected in ("of 40", "within every bound"):
            deadline = time.monotonic() + 60
            while expected not in chromium.text and time.monotonic() < deadline:
                time.sleep(0.1)
            assert expected in chromium.text
            go_on.set()
        run.join()
        assert all(figure["points"] for figure in chromium.figures())
        assert chromium.said == []
