"""The claims of a check at each point: what they are about is put on a tape, and each becomes a pair that is compared."""

from __future__ import annotations

import time
from dataclasses import replace

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.claims.asked import Asked, is_numbers
from gradcheck_cli.checks.claims.blame import blame, other_forward
from gradcheck_cli.checks.claims.claim import Claim, Inside
from gradcheck_cli.checks.claims.claimed_part import Here, judge, plan
from gradcheck_cli.checks.claims.evaluated import Answer, answer
from gradcheck_cli.checks.claims.layout import COTANGENT, expected, layouts
from gradcheck_cli.checks.claims.names import seed_name
from gradcheck_cli.checks.claims.own import Own
from gradcheck_cli.checks.claims.subject import as_declared, drawn_seed, put, seeds_of
from gradcheck_cli.checks.comparing import Comparing
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.checks.footprint import beyond, threads
from gradcheck_cli.checks.obstacles import obstacle
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.errors import GradcheckError, ModelError, PointError, UsageError, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import FULL_WORK
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import Point, feeds_at
from gradcheck_cli.points.test_data import shipped_with
from gradcheck_cli.settings import Settings

WRONG_SHAPE = "GC102"
_BLAMED = 16  # claims at a point for which one looks who is to blame: of more of them one says the same


class Claiming:
    """The claims of one check; what claims of one point are about, with our own derivative, is made once."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, comparing: Comparing, asked: Asked) -> None:
        self.source, self.settings, self.ops, self.comparing = source, settings, ops, comparing
        self.pairs = [Pair(claim.x, claim.y, claim=claim, notes=[*asked.notes]) for claim in asked.claims]
        self.work = FULL_WORK
        self._subjects: dict[str, tuple[Sides, Own]] = {}
        self._seen: dict[str, tuple[Sides, Answer | None]] = {}  # by title: what it is about, and what gives it
        if settings.compat is not None:
            raise UsageError("--compat tf compares gradcheck's own gradient as TensorFlow does, not what --grad gives.")
        if settings.forward == "onnxruntime":
            if not all(claim.found for claim in asked.claims):
                raise UsageError("--grad is held against gradcheck's own forward run: leave out --forward onnxruntime.")
            for pair in self.pairs:
                pair.notes.append("held against gradcheck's own forward run, not onnxruntime's")

    def at(self, point: Point, index: int) -> None:
        """Compares all claims at a point."""
        pairs = [pair for pair in self.pairs if pair.error is None and not pair.broken]
        if not pairs:
            return
        tape, self._subjects, self._seen = self._tape(point, index), {}, {}
        for pair in pairs:
            start = time.perf_counter()
            try:
                self._compare(pair, point, index, tape)
            except PointError as error:  # other points may do
                pair.missed.append(error)
            except GradcheckError as error:
                pair.error = error
            finally:
                self.comparing.done()
            pair.seconds += time.perf_counter() - start
        for pair in [pair for pair in pairs if pair.failed][:_BLAMED]:
            start = time.perf_counter()
            self._blame(pair, tape)
            pair.seconds += time.perf_counter() - start

    def _blame(self, pair: Pair, tape: Tape) -> None:
        """The suspect for a claim that is wrong, where our own gradient is right; once all claims have been judged."""
        sides, given = self._seen.get(pair.title, (None, None))
        if sides is None or pair.suspect is not None or pair.claimed.get("theoretical") == "fail":
            return
        about = [p for p in self.pairs if p.title in self._seen and self._seen[p.title][0] is sides]
        claims = {
            p.x: (not p.failed, p.outcomes[-1].stated if p.outcomes else None) for p in about if p.tallies or p.broken
        }
        elsewhere = None if given is None else other_forward(tape, given, self.source.graph)
        pair.suspect = elsewhere or blame(tape, sides.y, pair.x, claims, given, self.source.graph)

    def _tape(self, point: Point, index: int) -> Tape:
        """A run in float64 as far as all claims; seeds that are inputs have the shapes of their ys."""
        claims, graph = [pair.claim for pair in self.pairs if pair.claim is not None], self.source.graph
        inside = [c.by.name for c in claims if isinstance(c.by, Inside)]
        named = [seed for c in claims for seed in c.seeds.values() if isinstance(seed, str)]
        called = {name: y for c in claims for y in c.ys if inside and (name := seed_name(graph, y)) is not None}
        wanted = list(dict.fromkeys([*(n for c in claims for n in (c.x, *c.ys)), *inside, *named, *called]))
        made = feeds_at(self.source, self.settings, self.ops, wanted, index, point.dims)
        feeds = {**made, **point.feeds}
        given = {*self.settings.x_init_value, *self.settings.extra_feed_dict}
        for name, y in called.items():
            if name in graph.free_inputs and name not in given and y in point.tape.named:
                seed = drawn_seed(point.tape.named[y].value, self.settings.seed)
                feeds[name] = as_declared(graph, name, seed)
        return trace(graph, feeds, ops=self.ops, seed=self.settings.seed, targets=wanted, lenient=True)

    def _compare(self, pair: Pair, point: Point, index: int, tape: Tape) -> None:
        claim = pair.claim
        assert claim is not None
        self._require(claim, point, tape, index)
        pair.x_shape = tape.named[pair.x].shape
        pair.y_shape = tape.named[claim.ys[0]].shape if len(claim.ys) == 1 else ()
        pair.claimed = {"by": str(claim.by), "kind": claim.kind, "of": claim.ys, "found": claim.found}
        here = self._here(pair, claim, tape)
        if here is None:
            return
        error = obstacle(replace(point, tape=tape), here.sides, pair.x, index, self.settings.max_inconclusive)
        if error is not None:
            raise error
        if not threads(here.sides, pair.x, self.source.graph, "directional"):
            raise beyond(here.sides, pair.x, self.source.graph, "directional")
        if not pair.mode:
            self.work = plan(pair, here, self.work)
        judge(pair, here, self.comparing.budget(pair), self.source, index)

    def _require(self, claim: Claim, point: Point, tape: Tape, index: int) -> None:
        """What a claim is about is there, and numbers are about this point."""
        blocked = next((tape.blocked[n] for n in (*claim.ys, claim.x) if n in tape.blocked), None)
        if blocked is not None:
            raise blocked
        odd = next((n for n in (*claim.ys, claim.x) if n in tape.compounds or tape.named[n].dtype.kind != "f"), None)
        if odd is not None:
            raise UsageError(f"--grad: claims are about tensors of real numbers, and {shown(odd)!r} is none.")
        if is_numbers(claim):
            where = f"--grad {shown(claim.x)}=@{claim.by}: numbers belong to one point"
            if index:
                raise UsageError(f"{where}, not to {index + 1}: leave out --points and --point.")
            if drawn := self._drawn(claim, point):
                raise UsageError(f"{where}, and {drawn[0]!r} would be drawn. Give it: --feed {shown(drawn[0])}=@FILE")

    def _drawn(self, claim: Claim, point: Point) -> list[str]:
        """Inputs whose values nobody gave."""
        source, settings = self.source, self.settings
        shipped = shipped_with(source, settings, {**source.dims, **settings.dims, **point.dims})
        started = {n for target in settings.init_targets for n in source.initializations[target].bindings}
        given = {*shipped.at(0), *settings.x_init_value, *settings.extra_feed_dict, *source.drawn.get(0, {}), *started}
        needed = source.graph.needed_for(claim.ys)
        return [n for n in source.graph.free_inputs if n in needed and n not in given]

    def _here(self, pair: Pair, claim: Claim, tape: Tape) -> Here | None:
        """The claim with what it is held against; None for one of which no number needs to be looked at."""
        seeds, called = seeds_of(claim, tape, self.source.graph)
        found, wrong = None, ""
        try:
            found = answer(claim, tape, self.source.graph, self.ops, seeds)
        except ModelError as error:
            wrong = f"{claim.by} cannot be computed: {error}"
        x, y = pair.x_shape, pair.y_shape if len(claim.ys) == 1 else None
        fitting = [] if found is None else layouts(found.values.shape, x, y)
        if found is not None and not fitting:
            wrong = f"{claim.by} has the shape [{','.join(map(str, found.values.shape))}], not {expected(x, y)}"
        whole = bool(fitting) and fitting[0].order != COTANGENT
        drawn = {} if found is None else found.seeds
        said = "" if whole else ", ".join(called.values()) or ("drawn" if drawn else "ones")
        sides, own = self._subject(claim, {**seeds, **drawn}, tape, said)
        pair.claimed |= {"layout": fitting[0].order if fitting else "", "seed": said}
        self._seen[pair.title] = sides, found
        if found is None or wrong:
            pair.broken.append(Broken(WRONG_SHAPE, wrong))
            return None
        return Here(claim, found, own.nearest(fitting, found.values, sides.theory_name(pair.x)), sides, own)

    def _subject(self, claim: Claim, seeds: dict[str, Array], tape: Tape, how: str) -> tuple[Sides, Own]:
        key = f"{how} {claim.ys}"
        if key not in self._subjects:
            y = put(tape, claim.ys, seeds) if how else claim.ys[0]
            xs = [p.x for p in self.pairs if p.claim is not None and p.claim.ys == claim.ys]
            sides = Sides(tape, y, self.settings)
            own = Own(tape, sides.theory_name(y), [sides.theory_name(x) for x in xs if x in tape.named],
                      self.comparing.budget(self.pairs[0], shown=False))  # fmt: skip
            self._subjects[key] = sides, own
        return self._subjects[key]
