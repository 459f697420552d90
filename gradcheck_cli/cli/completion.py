"""Completion in bash, zsh and fish: the scripts of the shells, and the words that may stand where one is asked for.

A script hands over the command line up to the cursor and gets whole words, one a line: its kind, the word, a help.
Names come from files of strangers, and end in a command line: those that move a cursor are left out, the others are
quoted, by the shell or here.  Files are read as far as their names go; nothing is run, and nothing is said of errors.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import rich_click as click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from gradcheck_cli.errors import shown

VARIABLE = "_GRADCHECK_COMPLETE"
_WORK, _PATIENCE = 5.0, 60.0  # seconds of the processor, and of waiting, after which a shell gets no words
_MOST_FILES, _LONGEST_HELP = 4, 72
_MARKS = {**dict.fromkeys(("shapes", "ranges", "tolerances"), ":"), **dict.fromkeys(("values", "feeds", "claims"), "=")}
_PLAIN = re.compile(r"[\w@%+,./:=-]", re.ASCII)  # that mean themselves to bash
_SPECIAL = {'"': '$`"\\', "'": ""}  # between quotes


def script(shell: str) -> str:
    """The script that turns completion on in a shell; its first line says where it goes."""
    return _SCRIPTS.get(shell, "").lstrip().replace("VARIABLE", VARIABLE)


def answer() -> int:
    """Prints the words that a shell asks for through its environment; an error prints nothing."""
    shell, _, instruction = os.environ[VARIABLE].partition("_")
    if instruction == "source":
        print(script(shell), end="")
        return 0
    done = threading.Event()
    threading.Thread(target=_give_up, args=[done], daemon=True).start()
    with suppress(Exception):
        lines = [*_lines(shell, _Typed.of(os.environ["COMP_LINE"]))]
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
    done.set()
    return 0


def _give_up(done: threading.Event) -> None:
    """Ends the process where the words take too long: more than some work of its own, or on a busy machine a minute."""
    work, end = time.process_time() + _WORK, time.monotonic() + _PATIENCE
    while time.process_time() < work and time.monotonic() < end:
        if done.wait(0.1):
            return
    os._exit(0)


class _Typed(NamedTuple):
    """A command line up to the cursor: the words before the last one, and that one as it was typed."""

    before: list[str]
    last: str

    @classmethod
    def of(cls, line: str) -> _Typed:
        start, quote, position = 0, "", 0
        while position < len(line):
            c = line[position]
            if c == "\\" and quote != "'":
                position += 1
            elif c in "\"'" and quote in ("", c):
                quote = "" if quote else c
            elif c.isspace() and not quote:
                start = position + 1
            position += 1
        return cls(split_arg_string(line[:start])[1:], line[start:])


def _lines(shell: str, typed: _Typed) -> Iterator[str]:
    """The answer: for each word its kind, itself and its help; a word of kind `open` goes on after what is completed."""
    from gradcheck_cli.cli.group import gradcheck

    last = _unquoted(typed.last)
    option = re.match(r"--[^=]+=", last)
    found = ShellComplete(gradcheck, {}, "gradcheck", VARIABLE).get_completions([*typed.before], last)
    kept = _cut(typed.last, os.environ.get("COMP_WORD", "")) if shell == "bash" else None
    for item in found:
        word = (option[0] if option else "") + str(item.value)
        if item.type != "plain":
            yield item.type
        elif shown(word) == word:
            kind = "open" if item.open else "plain"
            yield f"{kind}\t{word}\t{_brief(item.help)}" if kept is None else f"{kind}\t{_rest(word, *kept)}"


def _brief(help: str | None) -> str:
    """The first sentence of a help, without its marks."""
    text = re.split(r"\.\s|\.$| \[default", " ".join((help or "").split()))[0].replace("`", "")
    return text if len(text) <= _LONGEST_HELP else f"{text[:_LONGEST_HELP]}..."


def _unquoted(text: str) -> str:
    return "".join(split_arg_string(text))


def _cut(last: str, part: str) -> tuple[int, str]:
    """The length of what stands before the part of a word that bash replaces, which ends at : or =, and the open quote."""
    before = last[: len(last) - len(part)] if part and last.endswith(part) else last
    if not part and before[-1:] not in (":", "=", '"', "'"):  # an empty word, or one that bash sees otherwise
        before = ""
    quote = before[-1:] if before[-1:] in _SPECIAL and before.count(before[-1:]) % 2 else ""
    return len(_unquoted(before)), quote


def _rest(word: str, start: int, quote: str) -> str:
    """The rest of a word as bash is to insert it: quoted, so that nothing in a name is a command to the shell."""
    if quote:
        return "".join(f"\\{c}" if c in _SPECIAL[quote] else c for c in word[start:])
    return "".join(c if _PLAIN.match(c) or not c.isascii() else f"\\{c}" for c in word[start:])


# --- words


def words(kind: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words of some kind that begin with what was typed."""
    found = _WORDS.get(kind, _named)(ctx, _MARKS.get(kind, ""))
    mark = kind in _MARKS or kind == "sizes"
    fitting = (each for each in found if each[0].lower().startswith(incomplete.lower()))
    items = [CompletionItem(word, help=help or None, open=mark) for word, help in dict(fitting).items()]
    return [*items, CompletionItem(incomplete, type="dir")] if kind == "runs" else items


def _named(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    """Tensors of the models on the command line, inputs and outputs first."""
    return ((f"{name}{mark}", "") for path in _models(ctx) for name in _tensors(path))


def _sizes(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    return ((f"{name}=", "") for path in _models(ctx) for name in _open_dimensions(path))


def _groups(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    return ((str(name), "") for path in _models(ctx) for name in _mapping(_document(path).get("init")))


def _checks(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    from gradcheck_cli.cli.tasks import side_car

    return ((name, "") for path in _models(ctx) for name in checks_of(side_car(path) or path))


def _codes(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS

    yield from ((code, page.title) for code, page in PAGES.items())
    yield from ((f"{family}xx", title) for family, (title, _) in FAMILIES.items())
    yield from ((topic, "") for topic in TOPICS)


def _operators(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    from gradcheck_cli.ops.facts import all_facts

    return ((each.full_name, _brief(each.does)) for each in all_facts())


def _runs(ctx: click.Context, mark: str) -> Iterator[tuple[str, str]]:
    from gradcheck_cli.cli.zoo.start import HOME

    return ((str(path), "") for path in sorted(Path(HOME).glob("*")) if path.is_dir())


_WORDS: Mapping[str, Callable[[click.Context, str], Iterable[tuple[str, str]]]] = {
    "sizes": _sizes, "init_targets": _groups, "check": _checks, "codes": _codes, "operators": _operators, "runs": _runs,
}  # fmt: skip


# --- names in files


def _models(ctx: click.Context) -> Iterator[str]:
    """The files on the command line that may be models; behind an option without its value nothing is parsed."""
    given = chain.from_iterable(v if isinstance(v, tuple) else [v] for v in ctx.params.values())
    paths = (os.path.expanduser(word) for word in (*given, *ctx.args) if isinstance(word, str) and word)
    return islice((path for path in dict.fromkeys(paths) if os.path.isfile(path)), _MOST_FILES)


def _tensors(path: str) -> list[str]:
    from gradcheck_cli.formats import is_spec

    with suppress(Exception):  # a shell gets no errors
        return [*(_tensors_of_spec(path) if is_spec(path) else _tensors_of_model(path))]
    return []


def _tensors_of_model(path: str) -> Iterator[str]:
    graph = _graph(path)
    weights = [each.name for each in graph.initializer] + [each.values.name for each in graph.sparse_initializer]
    yield from (each.name for each in graph.input if each.name not in {*weights})
    yield from (each.name for each in graph.output)
    yield from weights
    yield from (name for node in graph.node for name in node.output if name)


def _graph(path: str) -> Any:
    from gradcheck_cli.formats.onnx.file import outline_of

    return outline_of(Path(path)).graph


def _open_dimensions(path: str) -> list[str]:
    from gradcheck_cli.formats import is_spec

    with suppress(Exception):
        if is_spec(path):
            return [name for graph in _graphs(path) for name in _mapping(graph.get("dims"))]
        types = (each.type.tensor_type for each in _graph(path).input)
        return [dim.dim_param for each in types for dim in each.shape.dim if dim.dim_param]
    return []


def _tensors_of_spec(path: str) -> Iterator[str]:
    """Tensors of a spec's graphs, and of the models below its folder that its checks name."""
    from gradcheck_cli.formats.untrusted import inside

    for graph in _graphs(path):
        yield from (str(name) for key in ("inputs", "outputs", "params") for name in graph.get(key) or ())
        yield from _results(graph.get("nodes"))
    folder = Path(path).parent
    for model in dict.fromkeys(check.get("model") for check in _document(path).get("checks") or ()):
        if isinstance(model, str):
            inside(folder, model, "the folder of the spec")
            yield from _tensors(str(folder / model))


def _results(nodes: Any) -> Iterator[str]:
    """Names of what nodes compute, as mappings or in ONNX's text syntax."""
    if isinstance(nodes, list):
        yield from (str(name) for node in nodes for name in node["outputs"])
    for line in nodes.splitlines() if isinstance(nodes, str) else ():
        names, equals, _ = line.partition("=")
        yield from (name.strip().strip('"') for name in names.split(",") if equals and name.strip())


def checks_of(path: str) -> Iterator[str]:
    """Names of the checks of a spec; one without a name is called by its graph or model."""
    document, taken = _document(path), set[str]()
    alone = next(iter(_mapping(document.get("graphs"))), "")
    for check in document.get("checks") or ():
        base = str(check.get("graph") or Path(check.get("model") or alone).name)
        unused = (f"{base}#{i}" if i > 1 else base for i in range(1, len(taken) + 2))
        name = str(check.get("name") or next(each for each in unused if each not in taken))
        taken.add(name)
        yield name


def _graphs(path: str) -> list[Mapping[str, Any]]:
    return [_mapping(graph) for graph in _mapping(_document(path).get("graphs")).values()]


def _document(path: str) -> Mapping[str, Any]:
    """The content of a spec; nothing of it is built."""
    from gradcheck_cli.formats.yaml.places import Document

    with suppress(Exception):
        return _mapping(Document.read(path).root.value)
    return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_SCRIPTS = {
    "bash": """
# eval "$(gradcheck completion bash)"  in ~/.bashrc
_gradcheck_completion() {
    local kind value files=
    COMPREPLY=()
    while IFS=$'\\t' read -r kind value; do
        case $kind in
            file|dir) files=$kind ;;
            open) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" VARIABLE=bash_complete "$1" 2>/dev/null)
    if [[ $files && ${#COMPREPLY[@]} == 0 ]]; then
        if [[ $files == dir ]]; then compopt -o dirnames; else compopt -o default; fi
    elif [[ $files ]]; then
        compopt -o filenames
        while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -A "${files/dir/directory}" -- "$2")
    fi
}
complete -o nosort -F _gradcheck_completion gradcheck
""",
    "zsh": """
#compdef gradcheck
# eval "$(gradcheck completion zsh)"  in ~/.zshrc, after compinit
_gradcheck_completion() {
    local line files=
    local -a parts plain open helped lines
    for line in "${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" VARIABLE=zsh_complete ${~words[1]} 2>/dev/null)}"; do
        parts=("${(@ps:\\t:)line}")
        case $parts[1] in
            file|dir) files=$parts[1] ;;
            open) open+=("$parts[2]") ;;
            plain)
                if [[ -n $parts[3] ]]; then
                    helped+=("$parts[2]"); lines+=("$parts[2]  -- $parts[3]")
                else
                    plain+=("$parts[2]")
                fi ;;
        esac
    done
    (( $#plain )) && compadd -U -V plain -a plain
    (( $#open )) && compadd -U -S '' -V open -a open
    (( $#helped )) && compadd -U -l -V helped -d lines -a helped
    if [[ -n $files ]]; then
        compset -P '--[^=]##='
        if [[ $files == dir ]]; then _path_files -/; else _files; fi
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _gradcheck_completion "$@"
else
    compdef _gradcheck_completion gradcheck
fi
""",
    "fish": """
# gradcheck completion fish > ~/.config/fish/completions/gradcheck.fish
function _gradcheck_completion
    set -l token (commandline -ct)
    for line in (env COMP_LINE=(commandline -cp | string collect) VARIABLE=fish_complete gradcheck 2>/dev/null)
        set -l parts (string split \\t -- $line)
        switch $parts[1]
            case dir file
                set -l option (string match -r -- '^--[^=]*=' $token; or echo '')
                set -l rest (string replace -r -- '^--[^=]*=' '' $token)
                for path in (test $parts[1] = dir; and __fish_complete_directories $rest; or __fish_complete_path $rest)
                    echo $option$path
                end
            case '*'
                test -n "$parts[3]"; and echo $parts[2]\\t$parts[3]; or echo $parts[2]
        end
    end
end
complete --no-files --command gradcheck --arguments "(_gradcheck_completion)"
""",
}
