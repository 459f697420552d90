"""A time limit may strike at almost any moment: files that are just being opened are closed all the same."""

from __future__ import annotations

import dis
import gc
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import onnx.parser
import pytest

from gradcheck_cli.cli.limits import time_limit
from gradcheck_cli.errors import LimitError
from gradcheck_cli.formats.onnx import file as onnx_file
from gradcheck_cli.formats.untrusted import content, is_opening, sha256_of

READERS: dict[str, Callable[[Path], Any]] = {
    "a model": onnx_file.read_bytes,
    "the heading of a model": onnx_file.outline_of,
    "any file": lambda path: content(path, 1 << 10),
    "a hash": sha256_of,
}


CHECKED = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}  # after these, and as a function starts or goes on


class Alarm:
    """Strikes at one of the moments at which Python lets the handler of a signal run."""

    def __init__(self, moment: int) -> None:
        self.left, self.last = moment, dict[FrameType, str]()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes = True
        last, self.last[frame] = self.last.get(frame), dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if event == "call" or (event == "opcode" and last in CHECKED):
            self.left -= 1
            if self.left < 0 and not is_opening():
                raise LimitError("too long")
        return self


def struck(read: Callable[[], Any], moment: int) -> bool:
    """Runs it with an alarm at that moment; whether there was one so late."""
    before = sys.gettrace()
    sys.settrace(Alarm(moment))
    try:
        read()
    except LimitError:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture
def nothing_is_collected() -> Iterator[None]:
    """Leftovers of a run that an alarm stopped are not collected under the alarm of the next one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_is_collected")
@pytest.mark.parametrize("reader", READERS)
def test_no_file_stays_open_whenever_the_time_is_up(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> g (float x) => (float y) {}'), path)
    moment = 0
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        while struck(lambda: READERS[reader](path), moment):
            moment += 1
        gc.collect()
    assert moment > 10
    assert [str(each.message) for each in left_open] == []


class Slow:
    """Takes forever where a class that has it is made, and Python 3.11 makes a RuntimeError of what is raised there."""

    def __set_name__(self, owner: type, name: str) -> None:
        while True:
            pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no alarms here")
def test_what_python_wraps_is_the_time_limit_all_the_same() -> None:
    with pytest.raises(LimitError, match="took longer than"), time_limit(0.01):
        type("Made", (), {"slow": Slow()})


class Loader(ExtensionFileLoader):
    """Of an extension that calls Python while it is loaded, as those with enums do."""

    def exec_module(self, module: Any) -> None:
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        module.append("loaded")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no alarms here")
def test_a_time_limit_waits_for_an_extension_that_is_being_loaded() -> None:
    seen: list[str] = []

    def load_and_go_on() -> None:
        Loader("extension", "extension.so").exec_module(seen)
        time.sleep(20)

    with pytest.raises(LimitError, match="took longer than"), time_limit(0.01):
        load_and_go_on()
    assert seen == ["loaded"]


@pytest.mark.parametrize("error", [ZeroDivisionError("by 3"), LimitError("of something else")])
def test_other_errors_within_a_time_limit_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), time_limit(100):
        raise error
