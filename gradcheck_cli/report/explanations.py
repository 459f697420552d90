"""One page for each code: what it means, why it happens, what to do."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A code as `gradcheck explain` prints it."""

    title: str
    meaning: str
    causes: str
    remedy: str
    exit_code: int | None = None  # where it is not that of its family
    hint: str = ""  # what to try first, in a line of the report


FAMILIES = {
    "GC1": ("the gradient is wrong, or there is none", 1),
    "GC2": ("the command line, a spec or a configuration file", 2),
    "GC3": ("nothing can be said at this point", 3),
    "GC4": ("a model that cannot be loaded, or computes something else", 4),
    "GC5": ("something that gradcheck does not know", 5),
    "GC6": ("a limit was reached", 6),
    "GC7": ("nothing was checked", 7),
    "GC9": ("a bug of gradcheck", 70),
}

PAGES = {
    "GC101": Page(
        "entries of the gradient differ",
        "The theoretical Jacobian, made by the gradient rules of the operators, and the numerical one, "
        "made by perturbing x, differ by more than the tolerance plus everything that the numerical side "
        "can have wrong. Or a law does not hold that needs no differences: a pull-back is linear in the cotangent, no "
        "probe depends on those beside it, and what has no derivative does not move smoothly. With --compat tf "
        "nothing counts but |difference| <= atol + rtol |numerical|.",
        "A wrong gradient rule: a missing term, a sign, a factor, a transposed operand, an index that is "
        "not followed. The pattern names what an entry looks like, and the suspect is the node whose rule"
        " is wrong on its own.",
        "Look at the suspect first. `--show 20` lists more entries. If the difference does not matter to "
        "you, the report says from which --rtol on it would pass. A known failure can be declared in a "
        "spec until it is repaired: `gradcheck explain GC203`.",
    ),
    "GC102": Page(
        "the gradient has the wrong shape",
        "A gradient rule gives a tensor whose shape is not that of the operand it belongs to. Or somebody else's "
        "gradient, of --grad or found in the model, is neither of the shape of x nor a whole Jacobian.",
        "A sum over broadcast axes that is missing, or a transposition that is one too many. Values are "
        "not compared, since broadcasting could hide the difference.",
        "Compare the shape that the report names with the operand's, in the rule of that operator.",
    ),
    "GC103": Page(
        "the gradient is not finite",
        "The theoretical gradient holds NaN or infinity where the numerical derivative is finite.",
        "Often 0 * inf, the trap of the branch that is not taken: where(x > 0, log(x), 0) is finite, but where x is not "
        "positive the cotangent of log is 0 and its slope infinity or NaN, and 0 * inf is NaN. Every rule is right by "
        "itself. Likewise the square root under a Where, a norm or a power at 0, a division that a mask removes again, "
        "padding that is sliced off. The suspect is the node that leaves its domain; its diagnosis names the one that "
        "does not take its result. Or the slope itself is infinite at the edge of a domain, as that of Sqrt at 0: the "
        "diagnosis says which operand is there. Where no trap is found, the suspect's rule gives no number.",
        "Clamp the operand inside of the branch, before the operator and not after it: where(c, log(where(c, x, 1)), 0) "
        "or where(c, log(max(x, eps)), 0) instead of where(c, log(x), 0). At the edge of a domain keep it away from there, "
        "as in sqrt(x + eps) or asin(clip(x, eps - 1, 1 - eps)).",
    ),
    "GC104": Page(
        "not a subgradient",
        "x lies at a kink, and the theoretical gradient lies outside of the slopes on its two sides, which differ.",
        "A rule that no side of the kink supports: it gives something else where the operator decides between two "
        "pieces. The entry has failed because a single decision is tied; where several are at once, the entry is "
        "inconclusive: `gradcheck explain GC301`.",
        "At a kink any value between the slopes is right. Choose one of them, or share it out.",
    ),
    "GC105": Page(
        "outside the sparsity pattern",
        "The gradient is not zero for entries of x that y does not depend on: no path of the model leads from "
        "one to the other, whatever their values. No number is needed to see that.",
        "A rule that sends its cotangent to the wrong place, or to too many: a window, an index, an axis that is "
        "not the operator's own.",
        "Look at where the entries lie that the report names, and at which of them the operator reads.",
    ),
    "GC106": Page(
        "the model is nondeterministic",
        "Two identical runs, of the model or of its gradient, give different results: no derivative can be measured.",
        "A rule or a kernel written in Python that draws numbers of its own, keeps state from call to call, or shares it "
        "among threads. ONNX's own random operators are seeded and do not count.",
        "The message names the node. Let the function depend on its arguments alone, or fix the tensor by --feed.",
    ),
    "GC110": Page(
        "the outputs of two models differ",
        "`gradcheck diff A B` fed both models the same values, and an output of B is not that of A: by more than the "
        "tolerance, relative to an entry or to a tenth of the largest one, plus 8 times what rounding of the weights "
        "does to A, as it was measured. Outputs that are no floats must be equal.",
        "A rewriting that is none: a weight transposed, an attribute dropped, another epsilon, a Relu with a leak. Or "
        "more digits were lost than expected, in float16 or by a quantizer.",
        "The suspect is the node of B at which the first result differs. In the record, theoretical is the entry of A, "
        "numerical that of B. `--rtol` says how much does not matter; `--map` which tensor stands for which.",
    ),
    "GC111": Page(
        "the gradients of two models differ",
        "`gradcheck diff A B` pulled the same cotangents of an output back through both models, by the rules of their "
        "operators, and what arrives at an input or a parameter differs, by the same measure as for outputs (GC110).",
        "The outputs differ, and so do their slopes. Or the outputs are the same and a part of B is cut off from "
        "the gradient: it was folded to a constant, rounds, or goes through integers.",
        "Look at the outputs first. Where those are the same, the suspect is the node of B behind which gradients still "
        "are. Nothing flows through quantizers: `--straight-through` compares as training does.",
    ),
    "GC107": Page(
        "severed: no gradient by nature",
        "Every way from x to y goes through an operand that has no derivative by nature: rounding, a comparison, an "
        "index, a cast to an integer, a sample, a shape. The gradient is zero, the rules say so and the numbers agree; "
        "but nothing can be trained through it. The report names the nodes that cut, and how far back the gradient of "
        "y goes. It is a matter of the graph, not of values: a Relu that is off or a factor 0 does not cut. The run "
        "fails if x has a gradient from no y that was checked; if it has one from another, the row says from which. "
        "Where only some entries of x are cut off, or one summand, the check passes and a note says so; where all that "
        "is left leads through the scale of a quantizer, which trains nothing, the pair is severed too.",
        "Round, Floor, Sign, ArgMax, Hardmax, a comparison or a Cast to an integer between the weights and the loss; "
        "vector quantization or fake quantization without a straight-through gradient; a tree ensemble, which is "
        "piecewise constant; a model that was quantized for inference.",
        "Put something with a derivative in its place: a softmax for ArgMax and Hardmax, a sigmoid for a comparison, or "
        "let the gradient through as if nothing was rounded: `--straight-through` checks quantizers and rounding so. "
        "If it is meant, say so in a spec, or in a manifest's defaults for a whole folder: expect: {status: severed}. "
        "`--fail-on -severed` lets it through everywhere.",
        hint="if it is meant so, expect: {status: severed} in a spec: gradcheck explain GC107",
    ),
    "GC201": Page(
        "a wrong argument",
        "A name, a shape, a number or a file on the command line contradicts the model or itself.",
        "Every value is held against the model before anything runs, so that a misspelt name never passes.",
        "The message says what there is; `gradcheck inspect MODEL` lists all tensors.",
    ),
    "GC202": Page(
        "a wrong spec or configuration file",
        "A *.gradcheck.yaml, gradcheck.toml or pyproject.toml holds something that is not known or cannot be right.",
        "An unknown key, a value of another type, a name that the graph does not have. All mistakes are "
        "listed at once.",
        "Go to the line and column. `gradcheck schema spec` prints a JSON Schema with which editors find "
        "them while typing.",
    ),
    "GC203": Page(
        "a known failure that passes now (a waiver that no longer holds)",
        "A check passes though its `expect:` in the spec says that it does not. Waivers are strict: one covers "
        "the outcome that it names as long as that lasts, and once the check passes it counts as failed, so "
        "that a repaired gradient does not stay unguarded.",
        "The gradient was repaired. Or the check no longer reaches what was wrong: other values, sizes or "
        "targets than when the waiver was written.",
        "Remove the entry's `expect:` from the spec. A waiver looks like this: "
        "`expect: {status: fail, reason: ACME-412, until: 2027-03-31}`; its status is fail, severed, inconclusive, "
        "unsupported, error or limit, `forward: differs` is for a forward run (`gradcheck explain GC404`), and after its "
        "last day it is as if it were not there. All that failed in an earlier run becomes a known failure by --baseline.",
        exit_code=1,
    ),
    "GC301": Page(
        "kinks",
        "x lies where a decision of the model hangs in the balance: at 0 of a Relu, at a tie of a maximum, at the bound "
        "of a Clip. A gradient between the slopes from both sides passes as KINK-OK, whatever convention it follows. "
        "What is left has one of two reasons. nonderivative: the gradient is none of these slopes, though rules that "
        "are right for each operator alone may give it, as 0 for relu(x) - relu(-x), whose slope is 1. jump: there is "
        "no slope on some side, since y jumps or is infinitely steep, or the perturbation of --delta crosses a kink.",
        "Values that are exactly 0, equal to each other or to a constant: often from --x-init-value or test data.",
        "Another --seed (with --test-data none, where values ship with the model), or a --val-range that keeps away "
        "from the kink. --max-inconclusive says how many entries may be at one.",
        hint="another --seed, or values away from the kink: --val-range",
    ),
    "GC302": Page(
        "the forward run is not finite",
        "y holds NaN or infinity at the point, so there is nothing to differentiate. Where only a few entries of y do, "
        "they are left out and the others are compared; --max-inconclusive says how many that may be.",
        "An argument outside of an operator's domain (Log, Sqrt, Acos, a division by zero) or an overflow of Exp.",
        "The message names the first such node. Narrow the values: --val-range input:0.1,1.",
    ),
    "GC303": Page(
        "noise: the numerical error is too large",
        "The uncertainty of the numerical derivative (its numerical error, the column noise) is too large to confirm the "
        "entry or to call it wrong. The reason of an entry is noise (rounding hides it), curvature (the function bends too "
        "much within the steps that rounding allows) or underflow (numbers so small or so large that products of them are "
        "lost). The report says how large an error must be to be seen all the same.",
        "Rounding in the forward run is large compared with the entry: huge values that cancel, float32 "
        "inside the model, or inside a kernel of others, of which a note says how coarse its results are.",
        "--dtype float64 and --method auto (the defaults), a higher --rtol, or another point: --seed, --val-range. Where "
        "onnxruntime evaluates y (--forward onnxruntime), --mode directional too: sums of entries are larger than single "
        "ones.",
        hint="--method auto, another --seed, or a higher --rtol",
    ),
    "GC304": Page(
        "outside of the domain",
        "A perturbation of x leaves the domain of an operator.",
        "x lies at the end of the domain: 0 of a Sqrt, 1 of an Acos. If the gradient is not finite there, the suspect is "
        "the node with the infinite slope, whose rule need not be wrong.",
        "Keep a distance: --val-range x:0.1,0.9.",
    ),
    "GC401": Page(
        "the model cannot be read",
        "The file does not exist, is damaged, or is no ONNX model.",
        "A download that was cut off, another format under the name .onnx, a file that newer tools wrote.",
        "The message says what the file is. `onnx.checker.check_model` gives a second opinion.",
    ),
    "GC402": Page(
        "external data",
        "The weights are kept in another file, which is missing, too short, or outside of the model's folder.",
        "The model was moved or downloaded without its data.",
        "Put the data file beside the model, under the name that the message gives.",
    ),
    "GC403": Page(
        "a pointer instead of a model",
        "The file is a few lines of text that stand for the model in Git LFS.",
        "The repository was cloned without Git LFS.",
        "git lfs pull",
    ),
    "GC404": Page(
        "the forward run differs",
        "The outputs are not those that ship with the model (test_data_set_0), or not those that onnxruntime computes, "
        "by more than rounding explains. It stands in the record's `forward`, beside the verdict on the gradient, which "
        "is given all the same: the row says PASS or FAIL, a line below FORWARD DIFFERS. Where outputs are farther "
        "apart than a few roundings, every node is looked at on its own, fed what onnxruntime computed; the first that "
        "differs then is named. What is drawn at random, and all that depends on it, is not compared.",
        "Another version of an operator, test data of another model, or a mistake in one of the forward kernels: "
        "gradcheck's, or onnxruntime's.",
        "Hold the node that is named against the ONNX standard: until it is known which side is right, the gradient is "
        "that of gradcheck's reading of the model. A known difference can be declared in a spec, "
        "`expect: {forward: differs, reason: ACME-413}`, or by --baseline; `--fail-on -forward` lets it through "
        "everywhere. `--forward internal` leaves onnxruntime out, `--test-data none` the shipped outputs.",
        exit_code=1,
    ),
    "GC501": Page(
        "no gradient",
        "An operator between x and y has no gradient rule, or the model has nothing of a float type to differentiate: no "
        "output, or no input and no weight.",
        "The operator is not differentiable by nature (NonMaxSuppression), or gradcheck does not know its rule. Or the "
        "model ends in labels or boxes: the message names the last float tensor before them.",
        "Check up to it with --y, or from behind it with --x. A spec can define the operator and its gradient: "
        "`gradcheck explain ops`.",
    ),
    "GC502": Page(
        "no forward",
        "An operator, or one of its attributes, is not known, so that what stands behind it cannot be computed.",
        "A domain of a vendor, an operator that is newer than this version, or one that runs outside of the model.",
        "`gradcheck ops` lists what is known. What can be done about another, in order of effort: "
        "(1) check up to it: `--y TENSOR` with a tensor before it; "
        "(2) give what it computes, and check what stands behind or beside it: `--feed TENSOR=@values.npy`; "
        "(3) define it in a spec by ONNX's operators, with its gradient under test (`gradcheck explain ops`): "
        "`ops: {acme.Thing: {inputs: [x], outputs: [y], forward: 'y = Tanh (x)'}}`, with the file under `checks:` as "
        "`model: net.onnx` (`facts:` beside it states where operands lie, and what constants are); "
        "(4) install or write a package that has it, under the entry point `gradcheck.operators`; in Python, "
        '`gc.check(model, ops={**gc.OPS, ("acme", "Thing"): op})` does it for one check.',
    ),
    "GC503": Page(
        "dtype",
        "A tensor has a type with which nothing can be computed here.",
        "Strings, sequences or maps as inputs; numbers of less than 8 bits.",
        "Fix the tensor with --feed, or begin behind it with --x.",
    ),
    "GC601": Page(
        "time",
        "The check took longer than --timeout, the forward run and single long calls included.",
        "A full Jacobian costs a run of the model for each entry of x, and a backward run for each entry of y.",
        "--mode nodes checks every node on its own at the price of a few runs, --mode directional random "
        "projections; smaller shapes cost less; `gradcheck inspect` predicts the cost.",
    ),
    "GC602": Page(
        "memory",
        "The check needs more memory than --memory-limit in every mode, or there was none left.",
        "One run of the model at these sizes, tensors of which several copies are needed, or a sequence of more tensors "
        "than a run holds. The limit is half of what the machine or its control group has, unless one is given; `auto` has "
        "tried smaller sizes, one thread, nodes and directional before.",
        "The --memory-limit that the message names; smaller sizes (--x-shape, --dim).",
    ),
    "GC603": Page(
        "crash",
        "The process that checked the model ended by itself.",
        "The system killed it for its memory, or a native library failed.",
        "Run the one model alone to see its output; with a --memory-limit it is stopped before the system is short.",
    ),
    "GC701": Page(
        "nothing was checked",
        "No model or no check was left to run, which is never a success.",
        "A pattern that matches no file, an empty folder, -k that deselects everything.",
        "Quote patterns so that gradcheck expands them: 'models/**/*.onnx'.",
    ),
    "GC901": Page(
        "a bug of gradcheck",
        "Something happened that should not.",
        "A mistake in gradcheck itself.",
        "The message names a file with the traceback. Please report it together with the model.",
    ),
}

TOPICS = {  # pages on what no code stands for
    "ops": """ops  operators of one's own, in the `ops:` of a spec

A spec defines operators that ONNX does not have, or whose gradient is to be
checked, as domain.Name. It is a file called *.gradcheck.yaml:

  gradcheck: 1
  ops:
    acme.Softplus:
      inputs: [x]
      outputs: [y]
      forward: |
        e = Exp (x)
        one = Constant <value_float = 1.0> ()
        s = Add (e, one)
        y = Log (s)
      gradient: |
        s = Sigmoid (x)
        dx = Mul (dy, s)
  graphs:
    net:
      inputs: {x: {shape: [3, 4], range: [-3, 3]}}
      nodes: y = acme.Softplus (x)
      outputs: [y]

To check an ONNX file that has such nodes, write `checks: [{model: net.onnx}]`
in place of `graphs:`, and check the spec.

Keys of an operator
  inputs    names of its operands
  outputs   names of its results
  forward   nodes that compute the outputs from the inputs, by ONNX's operators
            or others of this spec, in ONNX's text syntax or as mappings
  gradient  nodes that compute dx for an input x from the inputs, the outputs,
            and dy, the gradient that arrives at the output y. It is what is
            checked; without it the forward nodes are differentiated
  attrs     attributes with their defaults; nodes refer to them by @name
  cuts      inputs without a derivative by nature: they decide, index or size
  facts     what a check cannot see in the nodes: where operands have to lie
            (domain, integers), what constants are (roles), how the result
            follows from the first operand (moves, same_axes, space), and what
            the operator is for the health of gradients (layer, bends, squashes)
  python    module:function that returns this entry; needs --allow-python

`gradcheck schema spec` describes every key. In Python, an operator is a
`gc.Op`: gc.check(model, ops={**gc.OPS, ("acme", "Softplus"): op}).
""",
}


def exit_code(code: str) -> int:
    """The exit code where nothing worse happened."""
    own = PAGES[code].exit_code
    return FAMILIES[code[:3]][1] if own is None else own
